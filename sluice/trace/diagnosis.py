"""Groups findings by root cause: each diagnosis lists one cause and its consequences."""

from collections.abc import Iterable, Sequence

from pydantic import Field

from sluice.base.settings import Record
from sluice.findings.catalogue import FaultName
from sluice.trace.fault_consequences import CONSEQUENCES
from sluice.trace.finding import TraceFinding

SEVERITY_LABELS = {"error": "error", "confirm": "needs confirmation", "warning": "warning"}
"""Text of each severity in reports."""

_SEVERITY_ORDER = {"error": 0, "confirm": 1, "warning": 2}
"""Position of each severity in a report, the most severe first."""


class Diagnosis(Record):
    """One root cause with its findings and consequences."""

    fault: FaultName
    confidence: float = Field(ge=0, le=1, description="Highest confidence of the findings.")
    findings: tuple[TraceFinding, ...] = Field(
        min_length=1, description="Findings of this fault, the most severe first."
    )
    explains: tuple[TraceFinding, ...] = Field(
        description="Consequences: findings of other faults that this fault can cause."
    )

    @property
    def consequences(self) -> tuple[TraceFinding, ...]:
        """Findings of other faults that this fault can cause; stored in the field ``explains``."""
        return self.explains

    @property
    def finding(self) -> TraceFinding:
        """Most severe finding of this fault, which reports show."""
        return self.findings[0]

    @property
    def step(self) -> int:
        """First step at which the fault is visible."""
        return min(finding.step for finding in self.findings)


def diagnose(findings: Iterable[TraceFinding]) -> tuple[Diagnosis, ...]:
    """Group findings by root cause; sort the groups by severity, then by confidence and step.

    A fault counts as a consequence of another fault that can cause it and is at least as severe. A
    warning therefore never hides an error. A fault that needs confirmation may also explain an
    error at the same step or later: the error confirms the fault. Every finding belongs to exactly
    one diagnosis.
    """
    by_fault: dict[FaultName, list[TraceFinding]] = {}
    for finding in sorted(findings, key=_sort_key):
        by_fault.setdefault(finding.fault, []).append(finding)
    root_by_fault = {fault: _find_root_cause(fault, by_fault) for fault in by_fault}
    consequences: dict[FaultName, list[TraceFinding]] = {
        root: [] for root in root_by_fault.values()
    }
    for fault, root in root_by_fault.items():
        if fault != root:
            consequences[root] += by_fault[fault]
    diagnoses = [
        Diagnosis(
            fault=root,
            confidence=max(f.confidence for f in by_fault[root]),
            findings=_raise_severity(by_fault[root], consequences[root]),
            explains=tuple(consequences[root]),
        )
        for root in by_fault
        if root in consequences
    ]
    return tuple(sorted(diagnoses, key=lambda d: (*_sort_key(d.finding)[:2], d.step)))


def _raise_severity(
    findings: Sequence[TraceFinding], consequences: Sequence[TraceFinding]
) -> tuple[TraceFinding, ...]:
    """Turn ``confirm`` findings of a fault into errors if one of its consequences is an error."""
    if not any(f.severity == "error" for f in consequences):
        return tuple(findings)
    return tuple(
        f.model_copy(update={"severity": "error"}) if f.severity == "confirm" else f
        for f in findings
    )


def _sort_key(finding: TraceFinding) -> tuple[int, float, int]:
    return _SEVERITY_ORDER[finding.severity], -finding.confidence, finding.step


def _find_cause(
    fault: FaultName, by_fault: dict[FaultName, list[TraceFinding]]
) -> FaultName | None:
    """Return the most severe fault of which ``fault`` is a consequence; None for a root cause."""
    causes = [
        other
        for other, findings in by_fault.items()
        if fault in CONSEQUENCES.get(other, ()) and _may_explain(findings, by_fault[fault])
    ]
    return min(causes, key=lambda other: _sort_key(by_fault[other][0]), default=None)


def _may_explain(
    cause_findings: Sequence[TraceFinding], effect_findings: Sequence[TraceFinding]
) -> bool:
    """Return whether the findings of a fault may explain the findings of its consequence."""
    cause_order = min(_SEVERITY_ORDER[f.severity] for f in cause_findings)
    effect_order = min(_SEVERITY_ORDER[f.severity] for f in effect_findings)
    # A finding that needs confirmation may be intended. An error that does not precede this finding
    # shows that the finding is a fault.
    is_not_preceded = min(f.step for f in cause_findings) <= min(f.step for f in effect_findings)
    return cause_order <= effect_order or (
        cause_order == _SEVERITY_ORDER["confirm"] and is_not_preceded
    )


def _find_root_cause(fault: FaultName, by_fault: dict[FaultName, list[TraceFinding]]) -> FaultName:
    """Return the root cause of a fault. The search ends: ``CONSEQUENCES`` contains no cycle."""
    cause = _find_cause(fault, by_fault)
    return fault if cause is None else _find_root_cause(cause, by_fault)
