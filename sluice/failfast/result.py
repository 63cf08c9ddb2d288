"""What a check found, what the gate decided, and the receipt that training asks for."""

from datetime import datetime
from typing import Literal, Self

from pydantic import Field

from sluice.base.receipts import Receipt
from sluice.base.settings import Record
from sluice.config.poc_settings import TimeLimit
from sluice.findings.finding import Finding, HardExample, Number, Outcome

Level = Literal["minimum", "full"]


class CheckResult(Record):
    """One check of the gate: what was seen, why it is likely, what to do."""

    name: str = Field(description="A sentence that is true when the check passes.")
    requirement: str = Field(description="Such as 'POC-2'.")
    outcome: Outcome
    numbers: dict[str, Number]
    seconds: float = Field(description="Time the check took [s].")
    typical_s: float = Field(description="Above this it warns [s].")
    max_s: float = Field(description="Above this it fails [s].")
    summary: str = Field(description="What was seen, and where.")
    cause: str = Field("", description="Why it is likely; empty when nothing is wrong.")
    fix: str = Field("", description="What to do; empty when nothing is wrong.")
    examples: tuple[HardExample, ...] = Field((), description="Rows to look at, worst first.")

    @classmethod
    def of(
        cls, finding: Finding, *, name: str, requirement: str, seconds: float, limit: TimeLimit
    ) -> Self:
        """Return a finding with who, how long, why it is likely and what to do."""
        cause, fix = finding.response
        return cls(
            name=name,
            requirement=requirement,
            outcome=finding.outcome,
            numbers=dict(finding.numbers),
            seconds=seconds,
            typical_s=limit.typical_s,
            max_s=limit.max_s,
            summary=finding.summary,
            cause=cause,
            fix=fix,
            examples=finding.examples,
        )

    @property
    def passed(self) -> bool:
        """True for a pass or a warning; a check that was skipped did not pass."""
        return self.outcome in ("pass", "warn")


class GateReport(Record):
    """Every check of one run of the gate."""

    level: Level
    workload: str
    results: tuple[CheckResult, ...] = Field(min_length=1)
    seconds: float = Field(description="Wall time of the whole gate [s].")

    @property
    def passed(self) -> bool:
        """True when every check passed; warnings pass, skipped checks do not."""
        return all(result.passed for result in self.results)

    @property
    def outcome(self) -> Literal["pass", "fail", "insufficient"]:
        """The gate's verdict: a failure outweighs missing evidence."""
        if self.passed:
            return "pass"
        outcomes = {result.outcome for result in self.results}
        return "insufficient" if "fail" not in outcomes else "fail"

    @property
    def blocking_failures(self) -> tuple[CheckResult, ...]:
        """The checks that failed or could not say, without those skipped because of them."""
        return tuple(r for r in self.results if r.outcome in ("fail", "insufficient"))

    @property
    def reason(self) -> str:
        """One sentence for people: what blocks, or that nothing does."""
        if self.passed:
            return f"All {len(self.results)} checks of the {self.level} gate passed."
        first, *others = self.blocking_failures or self.results
        more = f" ({len(others)} more)" if others else ""
        return f"{first.requirement} {first.name}: {first.summary}{more}"

    def receipt(self, subject: dict[str, str], decided_at: datetime) -> Receipt:
        """Return the decision as data about ``subject`` (digest by role)."""
        # Times and warnings stay out: they vary with the machine, and the same decision must
        # have the same digest.
        checks = {
            f"{result.requirement} {result.name}": {
                "outcome": "pass" if result.passed else result.outcome,
                "numbers": result.numbers,
            }
            for result in self.results
        }
        return Receipt(
            gate="poc",
            outcome=self.outcome,
            passed=self.passed,
            subject=subject,
            evidence={"level": self.level, "workload": self.workload, "checks": checks},
            reason=self.reason,
            decided_at=decided_at,
        )
