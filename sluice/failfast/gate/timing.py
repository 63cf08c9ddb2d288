"""How long a check, and the whole gate, may take (POC-11)."""

from sluice.config.poc_settings import TimeLimit
from sluice.failfast.result import CheckResult
from sluice.findings.finding import Finding, Outcome
from sluice.findings.responses import FailureKind

WHOLE_GATE = "gate_is_in_time"


def judge_time(finding: Finding, seconds: float, limit: TimeLimit) -> Finding:
    """Fail or warn when it took too long; what is already wrong stays the first thing said."""
    if seconds > limit.max_s and finding.outcome in ("pass", "warn"):
        allowed = f"at most {limit.max_s:g} s is allowed"
        return _late("fail", "gate over time", f"Took {seconds:.1f} s, {allowed}.", finding)
    if seconds > limit.typical_s and finding.outcome == "pass":
        usual = f"{limit.typical_s:g} s is usual"
        return _late("warn", "gate over typical time", f"Took {seconds:.1f} s, {usual}.", finding)
    return finding


def judge_whole_gate(seconds: float, limit: TimeLimit) -> CheckResult:
    """Return POC-11's own line: the time of all checks together, starting the process included."""
    finding = judge_time(Finding(outcome="pass", summary="All checks ended."), seconds, limit)
    return CheckResult.of(
        finding, name=WHOLE_GATE, requirement="POC-11", seconds=seconds, limit=limit
    )


def _late(outcome: Outcome, kind: FailureKind, took: str, finding: Finding) -> Finding:
    return Finding(
        outcome=outcome,
        summary=f"{took} {finding.summary}",
        numbers=finding.numbers,
        kind=kind,
        examples=finding.examples,
    )
