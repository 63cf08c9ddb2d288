"""The schema: made in an empty database, brought up to date in an older one.

Each step runs in one transaction with the new number, so a crash leaves the old schema whole, and
of two processes that open the registry at once the second finds the work done. A step only adds
tables and columns that may be null; alembic would bring a second version table and a script folder
to do no more than that.
"""

from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row, Table

from sluice.registry import log, tables
from sluice.registry.append_only import guard

_LOCK = 7_236_019_114
"""Any fixed number: PostgreSQL's advisory lock while the tables are made."""


def schema_version(connection: Connection) -> int | None:
    """Return the number, None when there are no tables; 0 for tables that are not ours."""
    if not sa.inspect(connection).has_table(tables.schema_version.name):
        return None
    columns = {c["name"] for c in sa.inspect(connection).get_columns(tables.schema_version.name)}
    if "number" not in columns:
        return 0
    return connection.execute(sa.select(tables.schema_version.c.number)).scalar() or 0


def can_update(found: int | None) -> bool:
    """Say whether ``bring_up_to_date`` has anything to do, and can do it."""
    return found is None or found in STEPS


def bring_up_to_date(connection: Connection) -> int | None:
    """Make or migrate the tables in the caller's transaction; return the number afterwards."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    found = schema_version(connection)  # another process may have been first
    if found is None:
        tables.metadata.create_all(connection)
        guard(connection, tables.APPEND_ONLY)
        log.start(connection)
        row = {"only_row": 1, "number": tables.SCHEMA_VERSION}
        connection.execute(sa.insert(tables.schema_version).values(row))
        return tables.SCHEMA_VERSION
    while found in STEPS:
        STEPS[found](connection)
        found += 1
        connection.execute(sa.update(tables.schema_version).values(number=found))
    return found


def _add_log(connection: Connection) -> None:
    """From 1 to 2: the log, written for what is there; signatures, deliveries, imports."""
    added = (
        tables.imported_receipts,
        tables.log,
        tables.log_head,
        tables.signatures,
        tables.deliveries,
    )
    tables.metadata.create_all(connection, tables=list(added))
    guard(connection, (tables.models, tables.imported_receipts, tables.log, tables.signatures))
    log.start(connection)
    later = (tables.rollouts, tables.rollout_transitions, tables.own_lineages)
    before = tuple(table for table in tables.LOGGED if table not in (*added, *later))
    log.write_down(connection, [(t, row) for t in before for row in _rows(connection, t)])
    # Until now each version was mirrored as it was made: nothing of that is told again.
    told = sa.select(sa.literal(MIRROR), tables.history.c.id, tables.history.c.at)
    columns = ["consumer", "line", "delivered_at"]
    connection.execute(sa.insert(tables.deliveries).from_select(columns, told))


def _add_rollouts(connection: Connection) -> None:
    """From 2 to 3: rollouts, where they stand and how they came there."""
    added = (tables.rollouts, tables.rollout_transitions)
    tables.metadata.create_all(connection, tables=[*added, tables.rollout_heads])
    guard(connection, added)


def _add_observations(connection: Connection) -> None:
    """From 3 to 4: what servers saw."""
    added = (tables.server_states, tables.arm_counts, tables.samples, tables.rollout_notes)
    tables.metadata.create_all(connection, tables=list(added))


def _add_own_lineages(connection: Connection) -> None:
    """From 4 to 5: what training here made of candidates that had been imported."""
    tables.metadata.create_all(connection, tables=[tables.own_lineages])
    guard(connection, (tables.own_lineages,))


def _add_signers(connection: Connection) -> None:
    """From 5 to 6: what a signature covers and who made it; attempts that were refused."""
    table = tables.signatures
    existing = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
    for column in (table.c.since, table.c.kind, table.c.actor):
        if column.name not in existing:  # a first schema got the whole table two steps ago
            kind = column.type.compile(connection.dialect)
            connection.execute(sa.text(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}"))
    if connection.dialect.name == "postgresql":  # SQLite does not count characters
        connection.execute(
            sa.text(f"ALTER TABLE {table.name} ALTER COLUMN signature TYPE VARCHAR(128)")
        )
    if not sa.inspect(connection).has_table(tables.refusals.name):
        tables.metadata.create_all(connection, tables=[tables.refusals])
        guard(connection, (tables.refusals,))


def _rows(connection: Connection, table: Table) -> list[Row[Any]]:
    return list(connection.execute(sa.select(table).order_by(*table.primary_key)))


MIRROR = "wandb"
"""The one consumer that there was before deliveries were kept."""

STEPS: Mapping[int, Callable[[Connection], None]] = {
    1: _add_log,
    2: _add_rollouts,
    3: _add_observations,
    4: _add_own_lineages,
    5: _add_signers,
}
"""What leads on from a schema, by its number."""
