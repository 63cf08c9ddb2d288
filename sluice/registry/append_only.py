"""The second fence: triggers that refuse to change or delete a row of an append-only table.

They stop slips and stray scripts. Whoever may drop a trigger is found by ``verify``, which reads
the log and trusts no trigger.
"""

from collections.abc import Iterable

from sqlalchemy import Connection, Table


def guard(connection: Connection, tables: Iterable[Table]) -> None:
    """Make the triggers of ``tables``, which have none yet."""
    dialect = connection.dialect.name
    if dialect == "postgresql":
        connection.exec_driver_sql(
            "CREATE OR REPLACE FUNCTION sluice_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'sluice: this table is append-only'; END $$"
        )
    for table in tables:
        if dialect == "postgresql":
            connection.exec_driver_sql(
                f"CREATE TRIGGER {table.name}_append_only "
                f"BEFORE UPDATE OR DELETE OR TRUNCATE ON {table.name} "
                "FOR EACH STATEMENT EXECUTE FUNCTION sluice_append_only()"
            )
        elif dialect == "sqlite":
            for action in ("UPDATE", "DELETE"):
                connection.exec_driver_sql(
                    f"CREATE TRIGGER {table.name}_no_{action.lower()} BEFORE {action} "
                    f"ON {table.name} BEGIN SELECT RAISE(ABORT, '{table.name} is append-only'); END"
                )
