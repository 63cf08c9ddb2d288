"""Records returned by the registry: versions, history entries, promotions, findings."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from sluice.base.receipts import Receipt
from sluice.base.settings import Record
from sluice.registry.lineage import Lineage

VersionState = Literal["dev", "staging", "production", "archived"]
HistoryAction = Literal[
    "register", "import", "accept", "trust", "stage", "unstage", "promote", "rollback"
]
"""``accept`` and ``trust`` belong to an import, with one history entry per import path of code
that the version names: ``accept`` for a path that the pipeline here also has, ``trust`` for a path
that the user trusts explicitly."""

ProblemKind = Literal[
    "artifact",
    "receipt",
    "lineage",
    "pointer",
    "history",
    "rollout",
    "log",
    "signature",
    "trigger",
    "table",
    "code",
]


class Version(Record):
    """A registered version of a model: one immutable candidate with its number and state."""

    model: str
    number: int
    candidate: str
    state: VersionState = Field(
        description="production: the production pointer has this version; archived: it was in "
        "production before; staging: its latest local promotion receipt passed; dev: otherwise."
    )
    registered_at: datetime
    lineage: Lineage
    is_imported: bool = Field(
        description="Whether the version exists here only through an import from another registry."
    )
    accepted_code: tuple[str, ...] = Field(
        (), description="Import paths of an imported version that the pipeline here also has."
    )
    trusted_code: tuple[str, ...] = Field(
        (), description="Import paths of an imported version that the importer trusts."
    )


class Registration(Record):
    """Result of registering or importing a candidate: its version and whether it is new."""

    version: Version
    created: bool


class LinkedReceipt(Record):
    """A receipt linked to a version."""

    receipt: Receipt
    line: int = Field(
        description="Number of the log line at which it became the latest receipt of its gate; "
        "orders receipts independently of the clock."
    )


class ProductionPointer(Record):
    """Production version of a model; ``revision`` counts the moves of the pointer."""

    version: int | None
    revision: int


class HistoryEntry(Record):
    """One entry of a model's history: action, versions, actor, reason, time and receipt."""

    id: int
    at: datetime
    model: str
    action: HistoryAction
    from_version: int | None
    to_version: int
    actor: str
    reason: str
    receipt: str | None = Field(description="Digest of the promotion receipt for the action.")
    revision: int | None = Field(description="Revision of the pointer after the move.")


class Promotion(Record):
    """Result of a promotion or rollback."""

    model: str
    version: int
    previous: int | None
    moved: bool = Field(description="False if the version was in production already.")
    revision: int
    at: datetime | None = Field(description="Time at which the pointer moved; None if it did not.")
    code: str = Field(
        "",
        description="After a rollback: sentences on whether the current code is that of the "
        "version.",
    )

    @property
    def summary(self) -> str:
        """The result in sentences, for display."""
        if not self.moved:
            return f"{self.model} {self.version} is in production already; nothing was changed."
        before = "nothing" if self.previous is None else f"version {self.previous}"
        moved = f"{self.model}: production is now version {self.version} (before: {before})."
        return f"{moved} {self.code}".rstrip()


class HistoryEvent(Record):
    """A history entry to be delivered to a consumer."""

    key: str = Field(description="Idempotency key: the same for every delivery of the event.")
    entry: HistoryEntry


class RegistryFinding(Record):
    """A problem found by a check of the registry."""

    model: str = Field(description="Name of the model; empty for the registry as a whole.")
    version: int | None
    problem: ProblemKind
    what: str
    fix: str
