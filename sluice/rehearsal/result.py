"""How a rehearsal went, and whether that is how it should have gone."""

from typing import Literal

from pydantic import AwareDatetime, Field

from sluice.base.settings import Record
from sluice.rehearsal.faults import Fault
from sluice.rollout.evidence import GuardName
from sluice.rollout.state import Transition

End = Literal["promoted", "rolled_back", "paused", "unsettled"]

EXPECTED: dict[Fault, End] = {
    "none": "promoted",
    "errors": "rolled_back",
    "latency": "rolled_back",
    "nan": "rolled_back",
    "drift": "rolled_back",
    "quality": "rolled_back",
    "crash": "rolled_back",
    "silence": "paused",
}
_NAMED_BY: dict[Fault, tuple[str, ...]] = {
    "none": ("",),
    "errors": ("errors in",),
    "latency": ("slower than", "after the deadline"),
    "nan": ("NaN or infinity",),
    "drift": ("too far from production's",),
    "quality": ("labels are against it",),
    "crash": ("SIGSEGV",),
    "silence": ("0 of",),
}
"""Words that name the fault, of the reason or of what the server said; one is enough."""

_SAID: dict[End, str] = {
    "promoted": "promoted",
    "rolled_back": "rolled back",
    "paused": "paused as inconclusive",
    "unsettled": "did not end in time",
}


class Moment(Record):
    """One look."""

    at_s: float = Field(description="Since the rollout began [s].")
    share: float
    step: int
    challenger: int = Field(description="Requests of the challenger at this step so far.")
    production: int = Field(description="Requests of production at this step so far.")
    evidence: dict[GuardName, float]
    distance: float | None = Field(description="Of the predictions; None before it is known [x].")


class Rehearsal(Record):
    """A rehearsal that is over."""

    model: str
    version: int = Field(description="In production in the real registry, which it stayed.")
    fault: Fault
    seed: int
    seconds: float = Field(description="What a healthy rollout was given [s].")
    began_at: AwareDatetime
    held_out_rows: int
    ended: End
    reason: str = Field(description="Of the transition that ended it.")
    remedy: str
    settled_s: float = Field(description="From the rollout's start to its end [s].")
    followed_s: float | None = Field(
        description="From its end until the server answered accordingly; None when it never did "
        "[s]."
    )
    sent: int = Field(description="Requests.")
    answered: int
    failed: int
    failure: str = Field(description="What the first failed request met; empty without one.")
    problems: tuple[str, ...] = Field(description="What the server said was wrong meanwhile.")
    limits: dict[GuardName, float] = Field(description="Evidence at which a guard rolls back.")
    drift_limit: float
    transitions: tuple[Transition, ...]
    moments: tuple[Moment, ...]

    @property
    def expected(self) -> End:
        """How it should end."""
        return EXPECTED[self.fault]

    @property
    def flaws(self) -> tuple[str, ...]:
        """What was not as it should be; () when all was."""
        found = []
        told = " ".join((self.reason, *self.problems))
        if self.ended != self.expected:
            found.append(f"It was to be {_SAID[self.expected]}, and {_SAID[self.ended]}.")
        elif not any(words in told for words in _NAMED_BY[self.fault]):
            found.append("Neither its reason nor the server names the fault that was planted.")
        if self.followed_s is None:
            found.append("The server did not follow the end.")
        if self.failed:
            found.append(f"{self.failed} requests failed, the first with: {self.failure}")
        if self.sent != self.answered + self.failed:
            found.append(f"{self.sent - self.answered - self.failed} requests have no answer.")
        return tuple(found)

    @property
    def as_expected(self) -> bool:
        """Whether it ended as it should, and no request failed."""
        return not self.flaws

    @property
    def summary(self) -> str:
        """One line for people."""
        follows = "" if self.followed_s is None else f", followed {self.followed_s:.1f} s later"
        return (
            f"{self.fault}: {_SAID[self.ended]} after {self.settled_s:.1f} s{follows}; "
            f"{self.sent:,} requests, {self.failed:,} failed"
        )
