"""Outcome of one check of the POC gate, and the examples with a high loss that a check lists."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from sluice.base.settings import Record
from sluice.findings.catalogue import FaultName, find_fault
from sluice.findings.finding import EvidenceValue

Outcome = Literal["pass", "warn", "fail", "insufficient", "skipped"]
"""``insufficient``: the evidence does not suffice to decide whether the check passes or fails."""


class UnusualFeature(Record):
    """One feature of an example whose value is far from the median."""

    feature: str
    value: float = Field(description="Value of the feature in this row, in the feature's unit.")
    deviations: float = Field(
        description="Distance from the median of the examined rows [robust std]. In a column of "
        "which most rows are equal, the unit is the standard deviation."
    )


class HardExample(Record):
    """One example with a high loss, and its unusual features."""

    row: str = Field(description="Index label of the row.")
    description: str = Field(
        "", description="Value of the display column of the workload; empty without one."
    )
    loss: float = Field(description="Loss of the example, in the workload's loss unit.")
    times_median: float = Field(
        description="Loss of the example divided by the median loss; NaN if the median is not "
        "positive."
    )
    unusual_features: tuple[UnusualFeature, ...] = Field(
        (), description="Most unusual feature first."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """Outcome of one check, before the gate adds the name and the run time of the check.

    If ``cause`` or ``fix`` is empty, ``response`` returns the text of the fault instead.
    """

    outcome: Outcome
    summary: str
    numbers: Mapping[str, EvidenceValue] = field(default_factory=dict)
    fault: FaultName | None = None
    cause: str = ""
    fix: str = ""
    examples: tuple[HardExample, ...] = ()

    @property
    def response(self) -> tuple[str, str]:
        """Likely cause and fix: ``cause`` and ``fix``; the texts of the fault if these are empty.

        Without a fault, empty texts stay empty.
        """
        if self.fault is None:
            return self.cause, self.fix
        fault = find_fault(self.fault)
        return self.cause or fault.cause, self.fix or fault.fix
