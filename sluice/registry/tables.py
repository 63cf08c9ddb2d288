"""The ledger's tables, all named sluice_...; all but the pointers are append-only.

A version's state (dev, staging, production, archived) is no column: it is derived from the
pointer, the history and the receipts, so that it cannot contradict them.
"""

from datetime import UTC, datetime

from sqlalchemy import (
    Column,
    Connection,
    Dialect,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

SCHEMA_VERSION = 1
PRODUCTION = "production"

_NAME = String(200)
_DIGEST = String(64)


class UtcTime(TypeDecorator[datetime]):
    """A moment in UTC, as ISO 8601 text: SQLite would drop the time zone."""

    impl = String(40)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Return the text to store; a moment without a time zone is our own mistake."""
        if value is None:
            return None
        assert value.tzinfo is not None, "the ledger's clock must return aware times"
        return value.astimezone(UTC).isoformat(timespec="microseconds")

    def process_result_value(self, value: str | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Return the moment that was stored."""
        return None if value is None else datetime.fromisoformat(value)


metadata = MetaData()

schema_version = Table(
    "sluice_schema_version",
    metadata,
    Column("only_row", Integer, primary_key=True, autoincrement=False),
    Column("number", Integer, nullable=False),
)

models = Table(
    "sluice_models",
    metadata,
    Column("name", _NAME, primary_key=True),
    Column("created_at", UtcTime, nullable=False),
)

versions = Table(
    "sluice_versions",
    metadata,
    Column("model", _NAME, ForeignKey("sluice_models.name"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("candidate", _DIGEST, nullable=False),
    Column("lineage", Text, nullable=False),  # Text, not JSON: PostgreSQL's JSON refuses NaN
    Column("registered_at", UtcTime, nullable=False),
    UniqueConstraint("model", "candidate"),
)

receipts = Table(
    "sluice_receipts",
    metadata,
    Column("digest", _DIGEST, primary_key=True),
    Column("gate", String(40), nullable=False),
    Column("payload", Text, nullable=False),
    Column("recorded_at", UtcTime, nullable=False),
)

# One row each time a receipt is recorded: "fail, pass, the same fail again" ends in a fail, though
# the last receipt has the digest of the first.
recordings = Table(
    "sluice_recordings",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("receipt", _DIGEST, ForeignKey("sluice_receipts.digest"), nullable=False),
    Column("recorded_at", UtcTime, nullable=False),
    sqlite_autoincrement=True,
)

version_receipts = Table(
    "sluice_version_receipts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("model", _NAME, nullable=False),
    Column("number", Integer, nullable=False),
    Column("receipt", _DIGEST, ForeignKey("sluice_receipts.digest"), nullable=False),
    Column("linked_at", UtcTime, nullable=False),
    ForeignKeyConstraint(["model", "number"], ["sluice_versions.model", "sluice_versions.number"]),
    UniqueConstraint("model", "number", "receipt"),
    sqlite_autoincrement=True,
)

decisions = Table(
    "sluice_decisions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("model", _NAME, ForeignKey("sluice_models.name"), nullable=False),
    Column("candidate", _DIGEST, nullable=False),
    Column("reference", _DIGEST, nullable=False),
    Column("window", _DIGEST, nullable=False),
    Column("receipt", _DIGEST, ForeignKey("sluice_receipts.digest"), nullable=False),
    Column("recorded_at", UtcTime, nullable=False),
    UniqueConstraint("model", "candidate", "reference", "window"),
    sqlite_autoincrement=True,
)

pointers = Table(
    "sluice_pointers",
    metadata,
    Column("model", _NAME, ForeignKey("sluice_models.name"), primary_key=True),
    Column("name", String(40), primary_key=True),
    Column("version", Integer, nullable=True),
    Column("revision", Integer, nullable=False),
    ForeignKeyConstraint(["model", "version"], ["sluice_versions.model", "sluice_versions.number"]),
)

history = Table(
    "sluice_history",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", UtcTime, nullable=False),
    Column("model", _NAME, ForeignKey("sluice_models.name"), nullable=False),
    Column("action", String(20), nullable=False),
    Column("from_version", Integer, nullable=True),
    Column("to_version", Integer, nullable=False),
    Column("actor", String(200), nullable=False),
    Column("reason", Text, nullable=False),
    Column("receipt", _DIGEST, ForeignKey("sluice_receipts.digest"), nullable=True),
    # The pointer's revision after this move; null for registrations. Unique, so that one
    # revision can never be explained twice.
    Column("revision", Integer, nullable=True),
    ForeignKeyConstraint(
        ["model", "to_version"], ["sluice_versions.model", "sluice_versions.number"]
    ),
    UniqueConstraint("model", "revision"),
    sqlite_autoincrement=True,
)

APPEND_ONLY = (versions, receipts, recordings, version_receipts, decisions, history)


def guard(connection: Connection) -> None:
    """Make triggers that refuse to change or delete a row of an append-only table.

    They stop slips and stray scripts. Whoever may drop a trigger is found by ``verify`` instead.
    """
    dialect = connection.dialect.name
    if dialect == "postgresql":
        connection.exec_driver_sql(
            "CREATE OR REPLACE FUNCTION sluice_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'sluice: this table is append-only'; END $$"
        )
    for table in APPEND_ONLY:
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
