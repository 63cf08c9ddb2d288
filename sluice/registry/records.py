"""What the ledger answers with: versions, moves of the pointer, findings."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from sluice.base.receipts import Receipt
from sluice.base.settings import Record
from sluice.registry.lineage import Lineage

State = Literal["dev", "staging", "production", "archived"]
Action = Literal["register", "import", "accept", "trust", "stage", "unstage", "promote", "rollback"]
"""accept and trust belong to an import, one line for each import path of code that the version
names: accept for a path that is the pipeline's own here, trust for one that the user named."""

Problem = Literal[
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
    """One immutable candidate under its number."""

    model: str
    number: int
    candidate: str
    state: State = Field(
        description="production: the pointer says so; archived: it was, once; staging: its last "
        "promotion receipt from a gate here passed; dev: anything else."
    )
    registered_at: datetime
    lineage: Lineage
    is_imported: bool = Field(
        description="Whether all that is known of it came in a file of another registry."
    )
    accepted_code: tuple[str, ...] = Field(
        (), description="Import paths of an imported version that are the pipeline's own here."
    )
    trusted_code: tuple[str, ...] = Field(
        (), description="Import paths of an imported version that its importer trusts."
    )


class Registration(Record):
    """The version of a candidate, and whether it is new."""

    version: Version
    created: bool


class LinkedReceipt(Record):
    """A receipt that the ledger tied to a version."""

    receipt: Receipt
    line: int = Field(description="Of the log: when it became the newest word, whatever the clock.")


class Pointer(Record):
    """Which version a model has in production; ``revision`` counts its moves."""

    version: int | None
    revision: int


class HistoryEntry(Record):
    """One line of the audit: who did what, when, why, on which evidence."""

    id: int
    at: datetime
    model: str
    action: Action
    from_version: int | None
    to_version: int
    actor: str
    reason: str
    receipt: str | None = Field(description="Digest of the promotion receipt acted on.")
    revision: int | None = Field(description="The pointer's revision after the move.")


class Promotion(Record):
    """Where production points after a promotion or rollback."""

    model: str
    version: int
    previous: int | None
    moved: bool = Field(description="False when the version was in production already.")
    revision: int
    at: datetime | None = Field(description="When the pointer moved; None when it did not.")
    code: str = Field(
        "", description="After a rollback: whether the code went back too, in sentences."
    )

    @property
    def summary(self) -> str:
        """What happened, in sentences for people."""
        if not self.moved:
            return f"{self.model} {self.version} is in production already; nothing was changed."
        before = "nothing" if self.previous is None else f"version {self.previous}"
        moved = f"{self.model}: production is now version {self.version} (before: {before})."
        return f"{moved} {self.code}".rstrip()


class Event(Record):
    """A line of history on its way to whoever wants to hear of it."""

    key: str = Field(description="The same for every delivery: tell it twice, do it once.")
    entry: HistoryEntry


class Finding(Record):
    """Something in the registry that does not hold."""

    model: str = Field(description="Its name; empty when the registry itself is meant.")
    version: int | None
    problem: Problem
    what: str
    fix: str
