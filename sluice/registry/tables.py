"""Tables of the registry, all named sluice_...; most are append-only and chained in the log.

The state of a version (dev, staging, production, archived) is not stored. It is derived from the
pointer, the history and the receipts, so that it cannot contradict them.
"""

from datetime import UTC, datetime

from sqlalchemy import (
    Column,
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

from sluice.base.errors import IntegrityError

SCHEMA_VERSION = 6
"""Version of the database schema, to which older databases are migrated."""

PRODUCTION = "production"
"""Name of the pointer to the version in production, the only pointer of a model."""

_NAME = String(200)
DIGEST_LENGTH = 64
"""Length of a SHA-256 digest in hexadecimal form [characters]."""

_DIGEST = String(DIGEST_LENGTH)


class UtcTime(TypeDecorator[datetime]):
    """UTC time stored as ISO 8601 text, because SQLite would drop the time zone."""

    impl = String(40)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Return the text to store; a time without a time zone is a programming error."""
        if value is None:
            return None
        assert value.tzinfo is not None, "the ledger's clock must return time-zone-aware times"
        return value.astimezone(UTC).isoformat(timespec="microseconds")

    def process_result_value(self, value: str | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Return the stored time.

        Raises:
            IntegrityError: The value is not a time, or has no time zone.
        """
        if value is None:
            return None
        try:
            time = datetime.fromisoformat(value)
        except (TypeError, ValueError):
            time = None
        if time is None or time.tzinfo is None:
            raise IntegrityError(
                f"A time in the registry must have a date and a time zone, got {value!r}.",
                cause="The registry's database was edited manually or damaged.",
                fix="Run sluice registry verify, and restore the database from a backup.",
            )
        return time


metadata = MetaData()

schema_version = Table(
    "sluice_schema_version",
    metadata,
    Column("only_row", Integer, primary_key=True, autoincrement=False),  # always 1
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
    Column("lineage", Text, nullable=False),  # Text and not JSON, as PostgreSQL's JSON rejects NaN
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

# One row for each time that a receipt is recorded. A gate may fail, pass, and then fail with the
# same receipt as the first time. This receipt is stored and linked to a version only once, but the
# order of these rows shows that the latest outcome is fail.
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
    # Revision of the pointer after this entry; null if the entry did not move the pointer.
    Column("revision", Integer, nullable=True),
    ForeignKeyConstraint(
        ["model", "to_version"], ["sluice_versions.model", "sluice_versions.number"]
    ),
    UniqueConstraint("model", "revision"),
    sqlite_autoincrement=True,
)

# Receipts that were imported with a version. No local gate issued them, so they are shown, but
# neither the state of the version nor a promotion depends on them.
imported_receipts = Table(
    "sluice_imported_receipts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("model", _NAME, nullable=False),
    Column("number", Integer, nullable=False),
    Column("receipt", _DIGEST, ForeignKey("sluice_receipts.digest"), nullable=False),
    Column("imported_at", UtcTime, nullable=False),
    ForeignKeyConstraint(["model", "number"], ["sluice_versions.model", "sluice_versions.number"]),
    UniqueConstraint("model", "number", "receipt"),
    sqlite_autoincrement=True,
)

# Lineage of the local training of a candidate that was imported before. It replaces the imported
# lineage, because everything that the candidate digest does not cover may be wrong there.
local_lineages = Table(
    "sluice_own_lineages",
    metadata,
    Column("model", _NAME, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("lineage", Text, nullable=False),
    Column("registered_at", UtcTime, nullable=False),
    ForeignKeyConstraint(["model", "number"], ["sluice_versions.model", "sluice_versions.number"]),
)

rollouts = Table(
    "sluice_rollouts",
    metadata,
    Column("id", _DIGEST, primary_key=True),
    Column("model", _NAME, ForeignKey("sluice_models.name"), nullable=False),
    Column("version", Integer, nullable=False),
    Column("receipt", _DIGEST, ForeignKey("sluice_receipts.digest"), nullable=False),
    Column("settings", Text, nullable=False),
    Column("started_at", UtcTime, nullable=False),
    ForeignKeyConstraint(["model", "version"], ["sluice_versions.model", "sluice_versions.number"]),
)

rollout_transitions = Table(
    "sluice_rollout_transitions",
    metadata,
    Column("rollout", _DIGEST, ForeignKey("sluice_rollouts.id"), primary_key=True),
    Column("revision", Integer, primary_key=True, autoincrement=False),
    Column("at", UtcTime, nullable=False),
    Column("outcome", String(20), nullable=False),
    Column("actor", String(200), nullable=False),
    Column("payload", Text, nullable=False),  # the whole transition with its evidence
)

# Last rollout of a model, in its state after the last check. Like the pointer, this row is mutable.
# Every check updates the row. A check that changes the phase also adds a transition.
rollout_heads = Table(
    "sluice_rollout_heads",
    metadata,
    Column("model", _NAME, ForeignKey("sluice_models.name"), primary_key=True),
    Column("rollout", _DIGEST, ForeignKey("sluice_rollouts.id"), nullable=False),
    Column("revision", Integer, nullable=False),
    Column("state", Text, nullable=False),
)

# Observations of servers. They are not chained and may be deleted, because a transition stores a
# copy of the observations on which it is based.
server_states = Table(
    "sluice_server_states",
    metadata,
    Column("model", _NAME, primary_key=True),
    Column("server", String(64), primary_key=True),
    Column("at", UtcTime, nullable=False),
    Column("payload", Text, nullable=False),
)

arm_counts = Table(
    "sluice_arm_counts",
    metadata,
    Column("rollout", _DIGEST, primary_key=True),
    Column("epoch", Integer, primary_key=True, autoincrement=False),
    Column("server", String(64), primary_key=True),
    Column("payload", Text, nullable=False),
)

samples = Table(
    "sluice_samples",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("model", _NAME, nullable=False, index=True),
    Column("rollout", _DIGEST, nullable=True, index=True),
    # Index label of the predicted row. Set only in the first sample with predictions of both arms
    # for this row, because its target is joined to that sample. Null in all other samples.
    Column("row_key", _NAME, nullable=True),
    Column("payload", Text, nullable=False),
    UniqueConstraint("rollout", "row_key"),
    sqlite_autoincrement=True,
)

# Notes by kind: the prediction agreement of a rollout, its verdicts on labelled pairs, and the
# client secret of each model.
rollout_notes = Table(
    "sluice_rollout_notes",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("rollout", _DIGEST, nullable=False, index=True),
    Column("kind", String(20), nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("payload", Text, nullable=False),
    sqlite_autoincrement=True,
)

# All tables and models are in one chain. With a chain per model, a removed model would not be
# detected.
log = Table(
    "sluice_log",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("entity", String(40), nullable=False),  # name of the table that the row was added to
    Column("key", Text, nullable=False),  # primary key of the row, as canonical JSON
    Column("content", _DIGEST, nullable=False),
    Column("previous", _DIGEST, nullable=False),
    Column("digest", _DIGEST, nullable=False),
    UniqueConstraint("entity", "key"),
)

log_head = Table(
    "sluice_log_head",
    metadata,
    Column("only_row", Integer, primary_key=True, autoincrement=False),  # always 1
    Column("lines", Integer, nullable=False),
    Column("digest", _DIGEST, nullable=False),
)

signatures = Table(
    "sluice_signatures",
    metadata,
    Column("key_id", String(16), primary_key=True),
    Column("line", Integer, ForeignKey("sluice_log.number"), primary_key=True),
    Column("digest", _DIGEST, nullable=False),
    Column("signature", String(128), nullable=False),  # Ed25519 in hexadecimal
    Column("signed_at", UtcTime, nullable=False),
    # The signature covers the lines after line ``since``, up to ``line``, so that a removed
    # signature leaves a gap. Null in signatures from before schema 6.
    Column("since", Integer, nullable=True),
    # "change" for the lines of one change, "bridge" for lines that a person reviewed and signed
    # later. Null in signatures from before schema 6.
    Column("kind", String(10), nullable=True),
    Column("actor", String(200), nullable=True),
)

# Rejected attempts, with actor and reason. They are not in the log, because an attempt may come
# from somebody without the key, and an unsigned line would block signed changes.
refusals = Table(
    "sluice_refusals",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", UtcTime, nullable=False),
    Column("model", _NAME, nullable=False),
    Column("action", String(20), nullable=False),
    Column("from_version", Integer, nullable=True),
    Column("to_version", Integer, nullable=True),
    Column("actor", String(200), nullable=False),
    Column("reason", Text, nullable=False),
    Column("error", String(40), nullable=False),  # class of the error
    Column("refused_because", Text, nullable=False),
    Column("key_id", String(16), nullable=True),  # signing key in use; null without a key
    sqlite_autoincrement=True,
)

# Delivered history entries. These rows are not chained, because a lost row only causes a repeated
# delivery.
deliveries = Table(
    "sluice_deliveries",
    metadata,
    Column("consumer", String(40), primary_key=True),
    # Id of the history entry; not the number of a log line.
    Column("line", Integer, ForeignKey("sluice_history.id"), primary_key=True),
    Column("delivered_at", UtcTime, nullable=False),
)

LOGGED_TABLES = (
    models,
    receipts,
    versions,
    recordings,
    version_receipts,
    imported_receipts,
    decisions,
    history,
    rollouts,
    rollout_transitions,
    local_lineages,
)
"""Tables whose rows all have a line in the log. A migration logs them in this order."""

APPEND_ONLY_TABLES = (*LOGGED_TABLES, log, signatures, refusals)
