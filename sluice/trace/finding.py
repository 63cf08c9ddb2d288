"""What a rule found in a trace, and what a rule is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from sluice.base.settings import Record
from sluice.trace.evidence.trace import Trace
from sluice.trace.faults import Fault

Severity = Literal["error", "confirm", "warning"]
"""Certainly wrong; wrong unless it is meant; worth a look."""

Number = float | int | str


_CONFIDENCE: dict[Severity, float] = {"error": 0.99, "confirm": 0.6, "warning": 0.3}


class Finding(Record):
    """One thing that is wrong, with the evidence for it."""

    rule: str
    fault: Fault
    confidence: float = Field(ge=0, le=1, description="That it is so, whatever was meant.")
    requirement: str = Field(description="Such as 'TRACE-12'.")
    severity: Severity
    step: int = Field(description="The first step that shows it.")
    what: str = Field(description="What was seen, where, how often.")
    cause: str = Field(description="What it does to the training.")
    fix: str
    evidence: dict[str, Number] = Field(description="The numbers that it stands on.")
    contradicted_by: str = Field(description="What would show that it is wrong.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is said of every rule, whatever it judges."""

    name: str
    """A sentence that is true when nothing is wrong."""
    fault: Fault
    requirement: str
    requires: str
    """The evidence without which it says nothing."""
    contradicted_by: str
    abstains: str
    """When the evidence is there and it says nothing all the same."""

    def finding(
        self,
        *,
        severity: Severity,
        step: int,
        what: str,
        cause: str,
        fix: str,
        confidence: float | None = None,
        **evidence: Number,
    ) -> Finding:
        """Return a finding of this rule; its confidence is that of its severity when None."""
        return Finding(
            rule=self.name,
            fault=self.fault,
            confidence=_CONFIDENCE[severity] if confidence is None else confidence,
            requirement=self.requirement,
            severity=severity,
            step=step,
            what=what,
            cause=cause,
            fix=fix,
            evidence=evidence,
            contradicted_by=self.contradicted_by,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Policy):
    """One policy over the evidence of one process."""

    judge: Callable[["Rule", Trace], tuple[Finding, ...]]

    def __call__(self, trace: Trace) -> tuple[Finding, ...]:
        """Return what is wrong."""
        return self.judge(self, trace)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRule(Policy):
    """One policy over the processes of a distributed run, one trace each, the first rank first."""

    judge: Callable[["RankRule", Sequence[Trace]], tuple[Finding, ...]]

    def __call__(self, traces: Sequence[Trace]) -> tuple[Finding, ...]:
        """Return what is wrong between the ranks."""
        return self.judge(self, traces)
