"""Records returned by the registry: versions, history entries, promotions, findings."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from sluice.base.receipts import Receipt
from sluice.base.settings import Record
from sluice.registry.lineage import Lineage

VersionState = Literal["dev", "staging", "production", "archived"]
HistoryAction = Literal[
    "register", "import", "accept", "trust", "stage", "unstage", "approve", "promote", "rollback"
]
"""Action of a history entry.

An import adds an ``accept`` or ``trust`` entry for each import path of code that the version names:
``accept`` if the local pipeline uses the same path, ``trust`` if the user trusts the path
explicitly."""

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
        description="production: the production pointer is at this version; archived: it was in "
        "production before; staging: its latest local promotion receipt passed; dev: otherwise."
    )
    registered_at: datetime
    lineage: Lineage
    is_imported: bool = Field(
        description="Whether the version was imported from another registry and not trained here."
    )
    accepted_code: tuple[str, ...] = Field(
        (), description="Import paths of an imported version that the local pipeline also uses."
    )
    trusted_code: tuple[str, ...] = Field(
        (), description="Import paths of an imported version that the user trusts explicitly."
    )


class Registration(Record):
    """Result of registering or importing a candidate: its version and whether it is new."""

    version: Version
    created: bool


class LinkedReceipt(Record):
    """A receipt linked to a version."""

    receipt: Receipt
    line_number: int = Field(
        description="Number of the log line at which the receipt became the latest of its gate. "
        "Receipts are sorted by this number, not by their times, because a clock may be wrong."
    )


class ProductionPointer(Record):
    """Production pointer of a model."""

    version: int | None = Field(description="Production version; None without one.")
    revision: int = Field(description="Number of moves of the pointer so far.")


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
    receipt: str | None = Field(
        description="Digest of the promotion receipt on which the action is based; for an "
        "approval, digest of the approval's receipt; None for other actions."
    )
    revision: int | None = Field(
        description="Revision of the pointer after the action; None if the pointer did not move."
    )


class Promotion(Record):
    """Result of a promotion or rollback."""

    model: str
    version: int
    previous: int | None
    moved: bool = Field(description="False if the version was in production already.")
    revision: int
    at: datetime | None = Field(
        description="Time at which the pointer moved; None if it did not move."
    )
    code: str = Field(
        "",
        description="After a rollback, sentences that say whether the current code is the code of "
        "the version.",
    )

    @property
    def summary(self) -> str:
        """The result in sentences, for display."""
        if not self.moved:
            return (
                f"{self.model} version {self.version} is in production already; nothing was "
                "changed."
            )
        previous = "nothing" if self.previous is None else f"version {self.previous}"
        move_text = f"{self.model}: production is now version {self.version} (before: {previous})."
        return f"{move_text} {self.code}".rstrip()


class Approval(Record):
    """A recorded approval of a promotion."""

    actor: str
    reason: str
    approved_at: datetime | None = Field(
        description="Time of the approval; None if it was not recorded."
    )
    expires_at: datetime | None = Field(
        description="Time at which the approval becomes invalid. None if the settings require no "
        "approval and so set no validity, or if the time of the approval was not recorded."
    )

    @property
    def summary(self) -> str:
        """Approver, reason and validity in one sentence."""
        time_text = "" if self.approved_at is None else f" at {self.approved_at:%Y-%m-%d %H:%M} UTC"
        expiry_text = (
            "" if self.expires_at is None else f", valid until {self.expires_at:%Y-%m-%d %H:%M} UTC"
        )
        return f"Approved by {self.actor}{time_text} ({self.reason}){expiry_text}."

    def is_valid_at(self, at: datetime) -> bool:
        """Return whether the approval has an expiry time after ``at``."""
        return self.expires_at is not None and at < self.expires_at


class ApprovalStatus(Record):
    """Whether the promotion of a version requires an approval, and which approval is recorded."""

    required: bool
    approval: Approval | None = Field(
        description="Newest approval of this promotion, expired or not; None without one."
    )
    problem: str = Field(
        "", description="Reason why no valid approval is recorded; empty if nothing is missing."
    )
    remedy: str = Field(
        "", description="Action by which an approval is obtained; empty if nothing is missing."
    )


class HistoryEvent(Record):
    """A history entry in the form in which consumers receive it."""

    key: str = Field(
        description="Idempotency key, which is the same for every delivery of the event."
    )
    entry: HistoryEntry


class RegistryFinding(Record):
    """A problem found by a check of the registry."""

    model: str = Field(description="Name of the model; empty for the registry as a whole.")
    version: int | None
    problem: ProblemKind
    what: str
    fix: str
