"""Findings of the rules in a trace, and the types of rules."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import Field

from sluice.base.settings import Settings
from sluice.findings.catalogue import FaultName
from sluice.findings.fault import Severity
from sluice.findings.finding import EvidenceValue, Finding
from sluice.trace.records.trace import Trace

_DEFAULT_CONFIDENCE: dict[Severity, float] = {"error": 0.99, "confirm": 0.6, "warning": 0.3}
"""Confidence of a finding by its severity, if the rule does not set the confidence."""


class TraceFinding(Finding):
    """One problem in a training, found by a rule."""

    rule: str = Field(description="Name of the rule.")
    confidence: float = Field(
        ge=0,
        le=1,
        description="Probability that the fault is present, whether or not the program's author "
        "intended it.",
    )
    step: int = Field(description="First step at which the problem is visible.")
    contradicted_by: str = Field(description="Condition under which the finding is a false alarm.")


class NoThresholds(Settings):
    """Settings of a rule that has no thresholds."""


SettingsT = TypeVar("SettingsT", bound=Settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleBase(Generic[SettingsT]):
    """Name, conditions and thresholds of a rule; the base of ``Rule`` and ``RankRule``."""

    name: str
    """Name of the rule: a sentence that is true when there is no problem."""
    priority: int
    """Position of the rule: rules run in ascending order, and findings of equal severity,
    confidence and step are reported in this order."""
    fault: FaultName
    requires: str
    """Evidence that the rule needs; without it the rule reports nothing."""
    contradicted_by: str
    """Condition under which a finding of the rule is a false alarm."""
    abstains: str
    """Condition under which the rule reports nothing although it has the evidence."""
    settings: SettingsT
    """Thresholds of the rule; their defaults are calibrated."""

    def finding(
        self,
        *,
        severity: Severity,
        step: int,
        what: str,
        cause: str,
        fix: str,
        confidence: float | None = None,
        **evidence: EvidenceValue,
    ) -> TraceFinding:
        """Return a finding of this rule.

        ``confidence`` defaults to 0.99 for 'error', 0.6 for 'confirm' and 0.3 for 'warning'.
        ``evidence`` contains the values on which the finding is based.
        """
        return TraceFinding(
            rule=self.name,
            fault=self.fault,
            confidence=_DEFAULT_CONFIDENCE[severity] if confidence is None else confidence,
            severity=severity,
            step=step,
            what=what,
            cause=cause,
            fix=fix,
            evidence=evidence,
            contradicted_by=self.contradicted_by,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(RuleBase[SettingsT]):
    """Rule about the trace of one process."""

    judge: Callable[["Rule[SettingsT]", Trace], tuple[TraceFinding, ...]]
    """Function that returns the problems in a trace, given this rule and the trace."""

    def __call__(self, trace: Trace) -> tuple[TraceFinding, ...]:
        """Return the problems in a trace."""
        return self.judge(self, trace)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRule(RuleBase[SettingsT]):
    """Rule about all ranks of a distributed run: one trace per rank, in the order of ranks."""

    judge: Callable[["RankRule[SettingsT]", Sequence[Trace]], tuple[TraceFinding, ...]]
    """Function that returns the problems between the ranks, given this rule and the traces."""

    def __call__(self, traces: Sequence[Trace]) -> tuple[TraceFinding, ...]:
        """Return the problems between the ranks of a distributed run."""
        return self.judge(self, traces)
