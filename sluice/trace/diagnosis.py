"""From many findings to few causes: what brought the others about comes first (TRACE-16)."""

from collections.abc import Iterable, Sequence

from pydantic import Field

from sluice.base.settings import Record
from sluice.trace.faults import EXPLAINS, Fault
from sluice.trace.finding import Finding

_RANK = {"error": 0, "confirm": 1, "warning": 2}


class Diagnosis(Record):
    """One cause, and everything that it explains."""

    fault: Fault
    confidence: float = Field(ge=0, le=1)
    findings: tuple[Finding, ...] = Field(
        min_length=1, description="That name it: the strongest first."
    )
    explains: tuple[Finding, ...] = Field(description="That are its consequences.")

    @property
    def finding(self) -> Finding:
        """The one to show."""
        return self.findings[0]

    @property
    def step(self) -> int:
        """The first step that shows it."""
        return min(finding.step for finding in self.findings)


def diagnose(findings: Iterable[Finding]) -> tuple[Diagnosis, ...]:
    """Return ranked causes: errors first, then the most certain, then the earliest.

    A finding becomes a consequence when another one, no later and no weaker than a warning against
    a warning, may have brought it about: so a warning never hides an error. Every finding is in
    exactly one diagnosis.
    """
    by_fault: dict[Fault, list[Finding]] = {}
    for finding in sorted(findings, key=_order):
        by_fault.setdefault(finding.fault, []).append(finding)
    parents = {fault: _parent(fault, by_fault) for fault in by_fault}
    roots = [fault for fault, parent in parents.items() if parent is None]
    found = [
        Diagnosis(
            fault=root,
            confidence=max(f.confidence for f in by_fault[root]),
            findings=_as_strong(by_fault[root], explained),
            explains=explained,
        )
        for root in roots
        for explained in [
            tuple(
                f
                for fault, others in by_fault.items()
                if fault != root and _root(fault, parents) == root
                for f in others
            )
        ]
    ]
    return tuple(sorted(found, key=lambda d: (*_order(d.finding)[:2], d.step)))


def _as_strong(own: Sequence[Finding], explained: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings of a cause; a question becomes an error by one that it explains."""
    is_error = any(f.severity == "error" for f in explained)
    return tuple(
        f.model_copy(update={"severity": "error"}) if is_error and f.severity == "confirm" else f
        for f in own
    )


def _order(finding: Finding) -> tuple[int, float, int]:
    return _RANK[finding.severity], -finding.confidence, finding.step


def _parent(fault: Fault, by_fault: dict[Fault, list[Finding]]) -> Fault | None:
    """Return the strongest fault that explains another one; the graph must have no cycle."""
    own = by_fault[fault]
    able = [
        other
        for other, theirs in by_fault.items()
        if fault in EXPLAINS.get(other, ()) and _may_explain(theirs, own)
    ]
    return min(able, key=lambda other: _order(by_fault[other][0]), default=None)


def _may_explain(causes: Sequence[Finding], effects: Sequence[Finding]) -> bool:
    strongest = min(_RANK[f.severity] for f in causes)
    weakest = min(_RANK[f.severity] for f in effects)
    # What would be a question alone is answered by an error that follows from it.
    follows = min(f.step for f in causes) <= min(f.step for f in effects)
    return strongest <= weakest or (strongest == _RANK["confirm"] and follows)


def _root(fault: Fault, parents: dict[Fault, Fault | None]) -> Fault:
    parent = parents[fault]
    return fault if parent is None else _root(parent, parents)
