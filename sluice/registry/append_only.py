"""Triggers that reject changes and deletions in append-only tables, and their verification.

They prevent mistakes and stray scripts. A user who may drop a trigger may also edit rows;
``verify`` finds both a modified trigger and a row that does not match the log.
"""

from collections.abc import Iterable, Iterator

import sqlalchemy as sa
from sqlalchemy import Connection, Table

from sluice.registry.records import RegistryFinding
from sluice.registry.tables import APPEND_ONLY, metadata

_FUNCTION = "sluice_append_only"
_BODY = "BEGIN RAISE EXCEPTION 'sluice: this table is append-only'; END"
_BEFORE_CHANGES = 2 | 8 | 16 | 32
"""``pg_trigger.tgtype`` of a statement trigger before DELETE, UPDATE or TRUNCATE."""

_CATALOG = """
SELECT c.relname, t.tgname, t.tgtype, t.tgenabled, t.tgqual IS NULL, t.tgattr::text, l.lanname,
    p.prosrc
FROM pg_trigger t
JOIN pg_class c ON c.oid = t.tgrelid
JOIN pg_proc p ON p.oid = t.tgfoid
JOIN pg_language l ON l.oid = p.prolang
WHERE NOT t.tgisinternal AND pg_table_is_visible(c.oid) AND c.relname IN :names
"""
_MASTER = (
    "SELECT tbl_name, name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name IN :names"
)

_MAX_NAMED = 3
_FIX = (
    "Find out who changed them and why, and restore the database from a backup. If you dropped "
    "them yourself: sluice registry restore-triggers"
)


def create_triggers(connection: Connection, tables: Iterable[Table]) -> None:
    """Create the triggers of ``tables``, which have none yet."""
    dialect = connection.dialect.name
    if dialect == "postgresql":
        connection.exec_driver_sql(
            f"CREATE OR REPLACE FUNCTION {_FUNCTION}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ {_BODY} $$"
        )
    for table in tables:
        for statement in _statements(dialect, table).values():
            connection.exec_driver_sql(statement)


def check(connection: Connection) -> Iterator[RegistryFinding]:
    """Yield one finding if triggers are missing, disabled, changed, or unknown.

    An unknown trigger on these tables can undo or add writes of the registry.

    Cost:
        One query.
    """
    expected = _expected(connection.dialect.name)
    found = _existing(connection)
    problems = [
        *(
            f"{name} on {table} is missing"
            for table, name in expected
            if (table, name) not in found
        ),
        *(
            f"{name} on {table} {'was changed' if (table, name) in expected else 'is unknown'}"
            for (table, name), definition in found.items()
            if expected.get((table, name)) != definition
        ),
    ]
    if problems:
        more = len(problems) - _MAX_NAMED
        yield RegistryFinding(
            model="",
            version=None,
            problem="trigger",
            what="The triggers that keep the registry's tables append-only were changed: "
            f"{'; '.join(problems[:_MAX_NAMED])}"
            f"{f'; and {more} more' if more > 0 else ''}.",
            fix=_FIX,
        )


def restore_triggers(connection: Connection) -> int:
    """Drop all triggers on the registry's tables, create its own again; return their number."""
    is_postgresql = connection.dialect.name == "postgresql"
    quote = connection.dialect.identifier_preparer.quote
    for table, name in _existing(connection):
        on = f" ON {quote(table)}" if is_postgresql else ""
        connection.exec_driver_sql(f"DROP TRIGGER {quote(name)}{on}")
    create_triggers(connection, APPEND_ONLY)
    return len(_expected(connection.dialect.name))


def _statements(dialect: str, table: Table) -> dict[str, str]:
    """Return the statements that create the triggers of a table, by trigger name."""
    if dialect == "postgresql":
        name = f"{table.name}_append_only"
        return {
            name: f"CREATE TRIGGER {name} BEFORE UPDATE OR DELETE OR TRUNCATE ON {table.name} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION {_FUNCTION}()"
        }
    if dialect == "sqlite":
        return {
            f"{table.name}_no_{action.lower()}": f"CREATE TRIGGER {table.name}_no_{action.lower()} "
            f"BEFORE {action} ON {table.name} "
            f"BEGIN SELECT RAISE(ABORT, '{table.name} is append-only'); END"
            for action in ("UPDATE", "DELETE")
        }
    return {}


def _expected(dialect: str) -> dict[tuple[str, str], str]:
    """Return the expected definition of each trigger, in the form of ``_existing``."""
    return {
        (table.name, name): _of_catalog(_BEFORE_CHANGES, "O", True, "", "plpgsql", _BODY)
        if dialect == "postgresql"
        else _plain(statement)
        for table in APPEND_ONLY
        for name, statement in _statements(dialect, table).items()
    }


def _existing(connection: Connection) -> dict[tuple[str, str], str]:
    """Return the definition of every trigger on a registry table, by table and name."""
    names = list(metadata.tables)
    if connection.dialect.name == "postgresql":
        query = sa.text(_CATALOG).bindparams(sa.bindparam("names", expanding=True))
        rows = connection.execute(query, {"names": names})
        return {(table, name): _of_catalog(*definition) for table, name, *definition in rows}
    if connection.dialect.name == "sqlite":
        query = sa.text(_MASTER).bindparams(sa.bindparam("names", expanding=True))
        rows = connection.execute(query, {"names": names})
        return {(table, name): _plain(str(definition)) for table, name, definition in rows}
    return {}


def _of_catalog(*parts: object) -> str:
    return " ".join(_plain(str(part)) for part in parts)


def _plain(text: str) -> str:
    return " ".join(text.split())
