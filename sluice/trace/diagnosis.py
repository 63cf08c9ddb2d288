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

    A fault counts as a consequence of another one that can cause it and is at least as severe. So a
    warning never hides an error. A fault that needs confirmation may also explain an error at the
    same step or later: the error confirms it. Every finding belongs to exactly one diagnosis.
    """
    by_fault: dict[FaultName, list[TraceFinding]] = {}
    for finding in sorted(findings, key=_sort_key):
        by_fault.setdefault(finding.fault, []).append(finding)
    roots = {fault: _root(fault, by_fault) for fault in by_fault}
    consequences: dict[FaultName, list[TraceFinding]] = {root: [] for root in roots.values()}
    for fault, root in roots.items():
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


def _parent(fault: FaultName, by_fault: dict[FaultName, list[TraceFinding]]) -> FaultName | None:
    """Return the most severe fault of which ``fault`` is a consequence; None for a root cause."""
    causes = [
        other
        for other, findings in by_fault.items()
        if fault in CONSEQUENCES.get(other, ()) and _may_explain(findings, by_fault[fault])
    ]
    return min(causes, key=lambda other: _sort_key(by_fault[other][0]), default=None)


def _may_explain(causes: Sequence[TraceFinding], effects: Sequence[TraceFinding]) -> bool:
    """Return whether the findings of one fault may explain those of a fault that it can cause."""
    cause_order = min(_SEVERITY_ORDER[f.severity] for f in causes)
    effect_order = min(_SEVERITY_ORDER[f.severity] for f in effects)
    # A finding to confirm may be intended, but an error that follows it shows that it is a fault.
    has_later_effects = min(f.step for f in causes) <= min(f.step for f in effects)
    return cause_order <= effect_order or (
        cause_order == _SEVERITY_ORDER["confirm"] and has_later_effects
    )


def _root(fault: FaultName, by_fault: dict[FaultName, list[TraceFinding]]) -> FaultName:
    """Return the root cause of a fault. It exists because ``CONSEQUENCES`` has no cycle."""
    parent = _parent(fault, by_fault)
    return fault if parent is None else _root(parent, by_fault)
