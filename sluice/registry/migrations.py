"""Creates the database schema, or migrates an older schema.

All migration steps and the new version number are written in one transaction, so a crash leaves the
old schema intact. If two processes open the registry at the same time, the second process finds a
migrated schema. Steps only add tables, triggers and nullable columns, widen a column, or insert
rows about existing entries into new tables. Alembic is therefore not used; it would need a second
version table and a folder of scripts.
"""

from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row, Table

from sluice.registry import log, tables
from sluice.registry.append_only import create_triggers

_ADVISORY_LOCK = 7_236_019_114
"""Arbitrary fixed number of the PostgreSQL advisory lock that is held during a migration."""


def schema_version(connection: Connection) -> int | None:
    """Return the schema version; None without tables, 0 for a damaged or foreign version table."""
    if not sa.inspect(connection).has_table(tables.schema_version.name):
        return None
    columns = {c["name"] for c in sa.inspect(connection).get_columns(tables.schema_version.name)}
    if "number" not in columns:
        return 0
    return connection.execute(sa.select(tables.schema_version.c.number)).scalar() or 0


def can_migrate(version: int | None) -> bool:
    """Return whether ``create_or_migrate`` can create the schema or migrate it from a version."""
    return version is None or version in STEPS


def create_or_migrate(connection: Connection) -> int | None:
    """Create or migrate the tables in the caller's transaction; return the schema version."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
    version = schema_version(connection)  # another process may have migrated the schema meanwhile
    if version is None:
        tables.metadata.create_all(connection)
        create_triggers(connection, tables.APPEND_ONLY_TABLES)
        log.create_head(connection)
        row = {"only_row": 1, "number": tables.SCHEMA_VERSION}
        connection.execute(sa.insert(tables.schema_version).values(row))
        return tables.SCHEMA_VERSION
    while version in STEPS:
        STEPS[version](connection)
        version += 1
        connection.execute(sa.update(tables.schema_version).values(number=version))
    return version


def _add_log(connection: Connection) -> None:
    """Migrate from 1 to 2: add signatures, deliveries, imports, and a log of the existing rows."""
    new_tables = (
        tables.imported_receipts,
        tables.log,
        tables.log_head,
        tables.signatures,
        tables.deliveries,
    )
    tables.metadata.create_all(connection, tables=list(new_tables))
    create_triggers(
        connection, (tables.models, tables.imported_receipts, tables.log, tables.signatures)
    )
    log.create_head(connection)
    later_tables = (tables.rollouts, tables.rollout_transitions, tables.local_lineages)
    old_tables = tuple(
        table for table in tables.LOGGED_TABLES if table not in (*new_tables, *later_tables)
    )
    rows = [(table, row) for table in old_tables for row in _load_rows(connection, table)]
    log.append_existing_rows(connection, rows)
    # Existing history entries are recorded as delivered, because with schema 1, each version was
    # mirrored to W&B as soon as it was registered.
    delivered_entries = sa.select(
        sa.literal(MIRROR_CONSUMER), tables.history.c.id, tables.history.c.at
    )
    columns = ["consumer", "line", "delivered_at"]
    connection.execute(sa.insert(tables.deliveries).from_select(columns, delivered_entries))


def _add_rollouts(connection: Connection) -> None:
    """Migrate from 2 to 3: add rollouts, their current state and their transitions."""
    new_tables = (tables.rollouts, tables.rollout_transitions)
    tables.metadata.create_all(connection, tables=[*new_tables, tables.rollout_heads])
    create_triggers(connection, new_tables)


def _add_observations(connection: Connection) -> None:
    """Migrate from 3 to 4: add the observations of servers."""
    new_tables = (tables.server_states, tables.arm_counts, tables.samples, tables.rollout_notes)
    tables.metadata.create_all(connection, tables=list(new_tables))


def _add_local_lineages(connection: Connection) -> None:
    """Migrate from 4 to 5: add the lineages of imported candidates that were trained locally."""
    tables.metadata.create_all(connection, tables=[tables.local_lineages])
    create_triggers(connection, (tables.local_lineages,))


def _add_signers(connection: Connection) -> None:
    """Migrate from 5 to 6: add the signed range, kind and actor to signatures; add refusals."""
    table = tables.signatures
    existing_columns = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
    for column in (table.c.since, table.c.kind, table.c.actor):
        if column.name not in existing_columns:  # _add_log creates the table with all columns
            sql_type = column.type.compile(connection.dialect)
            connection.execute(
                sa.text(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {sql_type}")
            )
    if connection.dialect.name == "postgresql":  # SQLite does not limit the length
        connection.execute(
            sa.text(f"ALTER TABLE {table.name} ALTER COLUMN signature TYPE VARCHAR(128)")
        )
    if not sa.inspect(connection).has_table(tables.refusals.name):
        tables.metadata.create_all(connection, tables=[tables.refusals])
        create_triggers(connection, (tables.refusals,))


def _load_rows(connection: Connection, table: Table) -> list[Row[Any]]:
    return list(connection.execute(sa.select(table).order_by(*table.primary_key)))


MIRROR_CONSUMER = "wandb"
"""Name of the W&B mirror as a consumer of history entries. Before deliveries were recorded, it was
the only consumer."""

STEPS: Mapping[int, Callable[[Connection], None]] = {
    1: _add_log,
    2: _add_rollouts,
    3: _add_observations,
    4: _add_local_lineages,
    5: _add_signers,
}
"""Migration step from each schema version to the next one."""
