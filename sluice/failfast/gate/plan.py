"""The planned checks with their time limits, as the supervisor receives them."""

from dataclasses import dataclass

from sluice.config.poc_settings import TimeLimit
from sluice.failfast.result import CheckResult
from sluice.findings.check_outcome import CheckOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCheck:
    """One check as plain data; its function exists only in the process that runs it."""

    name: str
    check_id: str
    limit: TimeLimit
    needs: tuple[str, ...]
    """Names of the prerequisite checks; this check is skipped unless they passed."""

    def failed_prerequisite(self, results: dict[str, CheckResult]) -> CheckResult | None:
        """Return the result of the first prerequisite that did not pass; None if all passed.

        Prerequisites that are not part of the run have no result and are ignored.
        """
        prerequisites = (results[name] for name in self.needs if name in results)
        return next((result for result in prerequisites if not result.passed), None)

    def result(self, outcome: CheckOutcome, seconds: float) -> CheckResult:
        """Return the result of this check: its outcome after a run time [s]."""
        return CheckResult.of(
            outcome,
            name=self.name,
            check_id=self.check_id,
            seconds=seconds,
            limit=self.limit,
        )

    def skipped_result(self, blocking_result: CheckResult) -> CheckResult:
        """Return the "skipped" result of this check, whose prerequisite did not pass."""
        # For a skipped prerequisite, name the check that failed first.
        if blocking_result.outcome == "skipped":
            outcome = CheckOutcome(
                outcome="skipped", summary=blocking_result.summary, fix=blocking_result.fix
            )
            return self.result(outcome, 0.0)
        outcome = CheckOutcome(
            outcome="skipped",
            summary=f"Skipped, because {blocking_result.name} did not pass "
            f"({blocking_result.outcome}).",
            fix=f"Correct {blocking_result.name} first.",
        )
        return self.result(outcome, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePlan:
    """All checks of one gate run, in the order in which they run."""

    workload: str
    checks: tuple[PlannedCheck, ...]
    whole_gate: TimeLimit
    reload_limit: TimeLimit
    """Time limit for loading the data again in a new process, after a process was stopped."""
    max_memory_share: float
    """Maximum memory of the gate's process, as a share of the memory that was free when the gate
    started, in (0, 1]."""
