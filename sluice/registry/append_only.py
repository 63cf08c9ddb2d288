"""Triggers that reject changes and deletions in append-only tables, and their verification.

Triggers protect against mistakes, but not against attackers, because a user who may drop a trigger
may also edit rows. ``sluice registry verify`` reports changed triggers, and rows that do not match
the log.
"""

from collections.abc import Iterable, Iterator

import sqlalchemy as sa
from sqlalchemy import Connection, Table

from sluice.registry.records import RegistryFinding
from sluice.registry.tables import APPEND_ONLY_TABLES, metadata

_FUNCTION_NAME = "sluice_append_only"
_FUNCTION_BODY = "BEGIN RAISE EXCEPTION 'sluice: this table is append-only'; END"
_STATEMENT_TRIGGER_TYPE = 2 | 8 | 16 | 32
"""Value of ``pg_trigger.tgtype`` for a statement trigger before DELETE, UPDATE or TRUNCATE."""

_POSTGRESQL_CATALOG = """
SELECT c.relname, t.tgname, t.tgtype, t.tgenabled, t.tgqual IS NULL, t.tgattr::text, l.lanname,
    p.prosrc
FROM pg_trigger t
JOIN pg_class c ON c.oid = t.tgrelid
JOIN pg_proc p ON p.oid = t.tgfoid
JOIN pg_language l ON l.oid = p.prolang
WHERE NOT t.tgisinternal AND pg_table_is_visible(c.oid) AND c.relname IN :names
"""
_SQLITE_CATALOG = (
    "SELECT tbl_name, name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name IN :names"
)

_MAX_LISTED_PROBLEMS = 3
"""Maximum number of problems that a finding lists."""
_FIX = (
    "Find out who changed the triggers and why, and restore the database from a backup. If you "
    "dropped the triggers yourself, run: sluice registry restore-triggers"
)


def create_triggers(connection: Connection, tables: Iterable[Table]) -> None:
    """Create the append-only triggers of ``tables``, which must not have these triggers yet."""
    dialect = connection.dialect.name
    if dialect == "postgresql":
        connection.exec_driver_sql(
            f"CREATE OR REPLACE FUNCTION {_FUNCTION_NAME}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ {_FUNCTION_BODY} $$"
        )
    for table in tables:
        for statement in _trigger_statements(dialect, table).values():
            connection.exec_driver_sql(statement)


def check(connection: Connection) -> Iterator[RegistryFinding]:
    """Yield one finding if triggers are missing, disabled, changed, or unknown.

    An unknown trigger is reported, because it could undo changes of the registry, or make further
    changes.

    Cost:
        One query.
    """
    expected_triggers = _expected_definitions(connection.dialect.name)
    existing_triggers = _existing_definitions(connection)
    problems = [
        *(
            f"{name} on {table} is missing"
            for table, name in expected_triggers
            if (table, name) not in existing_triggers
        ),
        *(
            f"{name} on {table} "
            + ("was changed" if (table, name) in expected_triggers else "is unknown")
            for (table, name), definition in existing_triggers.items()
            if expected_triggers.get((table, name)) != definition
        ),
    ]
    if problems:
        num_more = len(problems) - _MAX_LISTED_PROBLEMS
        yield RegistryFinding(
            model="",
            version=None,
            problem="trigger",
            what="The triggers that keep the registry's tables append-only were changed: "
            f"{'; '.join(problems[:_MAX_LISTED_PROBLEMS])}"
            f"{f'; and {num_more} more' if num_more > 0 else ''}.",
            fix=_FIX,
        )


def restore_triggers(connection: Connection) -> int:
    """Drop all triggers on the registry's tables, and create the registry's own triggers again.

    Returns the number of created triggers.
    """
    is_postgresql = connection.dialect.name == "postgresql"
    quote = connection.dialect.identifier_preparer.quote
    for table, name in _existing_definitions(connection):
        table_clause = f" ON {quote(table)}" if is_postgresql else ""
        connection.exec_driver_sql(f"DROP TRIGGER {quote(name)}{table_clause}")
    create_triggers(connection, APPEND_ONLY_TABLES)
    return len(_expected_definitions(connection.dialect.name))


def _trigger_statements(dialect: str, table: Table) -> dict[str, str]:
    """Return the statements that create the triggers of a table, by trigger name."""
    if dialect == "postgresql":
        name = f"{table.name}_append_only"
        return {
            name: f"CREATE TRIGGER {name} BEFORE UPDATE OR DELETE OR TRUNCATE ON {table.name} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION {_FUNCTION_NAME}()"
        }
    if dialect == "sqlite":
        return {
            f"{table.name}_no_{action.lower()}": f"CREATE TRIGGER {table.name}_no_{action.lower()} "
            f"BEFORE {action} ON {table.name} "
            f"BEGIN SELECT RAISE(ABORT, '{table.name} is append-only'); END"
            for action in ("UPDATE", "DELETE")
        }
    return {}


def _expected_definitions(dialect: str) -> dict[tuple[str, str], str]:
    """Return the expected definition of each trigger, in the form of ``_existing_definitions``."""
    # Columns of the catalog: enabled ("O"), without a condition, and not for some columns only.
    definition = _join_columns(_STATEMENT_TRIGGER_TYPE, "O", True, "", "plpgsql", _FUNCTION_BODY)
    return {
        (table.name, name): definition if dialect == "postgresql" else _normalize_spaces(statement)
        for table in APPEND_ONLY_TABLES
        for name, statement in _trigger_statements(dialect, table).items()
    }


def _existing_definitions(connection: Connection) -> dict[tuple[str, str], str]:
    """Return the definition of every trigger on a registry table, by table and name."""
    table_names = list(metadata.tables)
    if connection.dialect.name == "postgresql":
        query = sa.text(_POSTGRESQL_CATALOG).bindparams(sa.bindparam("names", expanding=True))
        rows = connection.execute(query, {"names": table_names})
        return {(table, name): _join_columns(*definition) for table, name, *definition in rows}
    if connection.dialect.name == "sqlite":
        query = sa.text(_SQLITE_CATALOG).bindparams(sa.bindparam("names", expanding=True))
        rows = connection.execute(query, {"names": table_names})
        return {
            (table, name): _normalize_spaces(str(definition)) for table, name, definition in rows
        }
    return {}


def _join_columns(*columns: object) -> str:
    """Return the columns of ``_POSTGRESQL_CATALOG`` that define a trigger, as one text."""
    return " ".join(_normalize_spaces(str(column)) for column in columns)


def _normalize_spaces(text: str) -> str:
    return " ".join(text.split())
