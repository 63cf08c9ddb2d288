"""The result of one check, and the examples that it points to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from sluice.base.settings import Record
from sluice.findings.responses import FailureKind, respond

Outcome = Literal["pass", "warn", "fail", "insufficient", "skipped"]


Number = float | int | str


class Standout(Record):
    """One feature of an example that is far from usual."""

    feature: str
    value: float = Field(description="What stands there, in the feature's own unit.")
    deviations: float = Field(description="Distance from the median of the rows looked at [std].")


class HardExample(Record):
    """One example with a high loss, and what is unusual about it."""

    row: str = Field(description="Index label of the row.")
    loss: float = Field(description="In the workload's loss unit.")
    times_median: float = Field(description="Its loss over the median loss.")
    standouts: tuple[Standout, ...] = Field((), description="Most unusual feature first.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check saw, before the gate adds who, when and how long.

    ``cause`` and ``fix`` come from the response of ``kind`` unless given.
    """

    outcome: Outcome
    summary: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
    kind: FailureKind | None = None
    cause: str = ""
    fix: str = ""
    examples: tuple[HardExample, ...] = ()

    @property
    def response(self) -> tuple[str, str]:
        """The likely cause and what to do; both empty when nothing is wrong."""
        if self.kind is None:
            return self.cause, self.fix
        known = respond(self.kind)
        return self.cause or known.cause, self.fix or known.fix
