"""Time limits of the checks and of the whole gate."""

from sluice.config.poc_settings import TimeLimit
from sluice.failfast.result import CheckResult
from sluice.findings.catalogue import FaultName
from sluice.findings.check_outcome import CheckOutcome, Outcome

WHOLE_GATE_CHECK = "gate_finishes_in_time"
WHOLE_GATE_CHECK_ID = "total_time"
WHOLE_GATE_DESCRIPTION = "All checks together finish within the time limit of the gate."


def apply_time_limit(
    untimed_outcome: CheckOutcome, seconds: float, limit: TimeLimit
) -> CheckOutcome:
    """Return the outcome of a check, or a worse outcome if the check was too slow.

    - Above ``limit.max_s``, a pass or a warning becomes a failure.
    - Above ``limit.typical_s``, a pass becomes a warning.
    """
    if seconds > limit.max_s and untimed_outcome.outcome in ("pass", "warn"):
        duration = f"The run time was {seconds:.1f} s; at most {limit.max_s:g} s is allowed."
        return _slow_outcome("fail", "time limit exceeded", duration, untimed_outcome)
    if seconds > limit.typical_s and untimed_outcome.outcome == "pass":
        duration = f"The run time was {seconds:.1f} s; up to {limit.typical_s:g} s is usual."
        return _slow_outcome("warn", "slower than usual", duration, untimed_outcome)
    return untimed_outcome


def check_total_time(seconds: float, limit: TimeLimit) -> CheckResult:
    """Return the result for the total time of all checks, including the start of the process."""
    summary = "All checks together finished, including the start of their process."
    outcome = apply_time_limit(CheckOutcome(outcome="pass", summary=summary), seconds, limit)
    return CheckResult.of(
        outcome, name=WHOLE_GATE_CHECK, check_id=WHOLE_GATE_CHECK_ID, seconds=seconds, limit=limit
    )


def _slow_outcome(
    outcome: Outcome, fault: FaultName, duration: str, untimed_outcome: CheckOutcome
) -> CheckOutcome:
    # The fault determines the cause and the fix, which concern only the run time.
    result = "Apart from the time, the check passed: " if untimed_outcome.outcome == "pass" else ""
    return CheckOutcome(
        outcome=outcome,
        summary=f"{duration} {result}{untimed_outcome.summary}",
        numbers=untimed_outcome.numbers,
        fault=fault,
        examples=untimed_outcome.examples,
    )
