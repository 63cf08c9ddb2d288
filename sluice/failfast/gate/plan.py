"""What will be checked and how long each may take: all that the supervisor needs to know."""

from dataclasses import dataclass

from sluice.config.poc_settings import TimeLimit
from sluice.failfast.result import CheckResult
from sluice.findings.finding import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCheck:
    """One check by name; its function stays in the process that runs it."""

    name: str
    requirement: str
    limit: TimeLimit
    needs: tuple[str, ...]
    """Names of checks that must have passed, or this one is skipped."""

    def blocked_by(self, results: dict[str, CheckResult]) -> CheckResult | None:
        """Return the first result that forbids this check; None when it may run."""
        blocking = (results[name] for name in self.needs if name in results)
        return next((result for result in blocking if not result.passed), None)

    def result(self, finding: Finding, seconds: float) -> CheckResult:
        """Return what this check found."""
        return CheckResult.of(
            finding,
            name=self.name,
            requirement=self.requirement,
            seconds=seconds,
            limit=self.limit,
        )

    def skipped(self, because: CheckResult) -> CheckResult:
        """Return the result of not having run."""
        if because.outcome == "skipped":  # name the root, not the chain
            finding = Finding(outcome="skipped", summary=because.summary, fix=because.fix)
            return self.result(finding, 0.0)
        other = f"{because.requirement} {because.name}"
        finding = Finding(
            outcome="skipped",
            summary=f"Not run, because {other} did not pass ({because.outcome}).",
            fix=f"Correct {other} first.",
        )
        return self.result(finding, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every check of one gate, in the order they run."""

    workload: str
    checks: tuple[PlannedCheck, ...]
    whole_gate: TimeLimit
    preparing: TimeLimit
    """For making the data again in a new process, after one was stopped."""
    max_memory_share: float
    """Of the memory that was free when the gate started, in (0, 1]."""
