"""Results of the gate for each entry, and its rates over all."""

from typing import Literal

from pydantic import Field

from sluice.base.settings import Record
from sluice.findings.check_outcome import Outcome

Verdict = Literal["caught", "missed", "other check", "wrong response"]


class DefectResult(Record):
    """Result of the gate for one planted defect."""

    name: str
    check: str = Field(description="The check that must be the first to object.")
    verdict: Verdict
    objected: str = Field(description="The check that was the first to object; empty for none.")
    outcome: Outcome = Field(description="Of that check; 'pass' when none objected.")
    summary: str
    cause: str
    fix: str
    absent: tuple[str, ...] = Field(description="What it should have said and did not.")
    seconds: float = Field(description="Gate time [s].")

    @property
    def caught(self) -> bool:
        """Whether the named check failed first, with the expected texts."""
        return self.verdict == "caught"


class HealthyResult(Record):
    """Result of the gate for one healthy set-up."""

    name: str
    objections: tuple[str, ...] = Field(description="Checks that did not pass, and what they say.")
    warnings: tuple[str, ...] = Field(description="Checks that warned, and what they say.")
    seconds: float = Field(description="Gate time [s].")

    @property
    def left_alone(self) -> bool:
        """Whether all checks passed, with or without warnings."""
        return not self.objections


class ExactRate(Record):
    """A proportion with its exact 95 % interval (Clopper and Pearson)."""

    count: int
    total: int
    share: float
    low: float
    high: float

    @classmethod
    def of(cls, count: int, total: int) -> "ExactRate":
        """Return the share of ``count`` in ``total``, which must not be 0.

        Source:
            Clopper and Pearson (1934), Biometrika 26(4).
        """
        # scipy.special, not scipy.stats: the same quantile without a second of import.
        from scipy.special import betaincinv

        low = float(betaincinv(count, total - count + 1, 0.025)) if count else 0.0
        high = float(betaincinv(count + 1, total - count, 0.975)) if count < total else 1.0
        return cls(count=count, total=total, share=count / total, low=low, high=high)

    def __str__(self) -> str:
        return (
            f"{self.count} of {self.total} ({self.share:.1%}, "
            f"95 % interval {self.low:.1%} to {self.high:.1%})"
        )


class BenchmarkReport(Record):
    """Results of both tables, as far as they ran."""

    defects: tuple[DefectResult, ...]
    healthy: tuple[HealthyResult, ...]

    @property
    def passed(self) -> bool:
        """Whether every defect was found and no healthy set-up failed."""
        return all(r.caught for r in self.defects) and all(r.left_alone for r in self.healthy)

    @property
    def caught(self) -> ExactRate:
        """Defects found by the named check with the right response."""
        return ExactRate.of(sum(r.caught for r in self.defects), len(self.defects))

    @property
    def missed(self) -> ExactRate:
        """Defects that no check found."""
        return ExactRate.of(sum(r.verdict == "missed" for r in self.defects), len(self.defects))

    @property
    def false_alarms(self) -> ExactRate:
        """Healthy set-ups that failed."""
        return ExactRate.of(sum(not r.left_alone for r in self.healthy), len(self.healthy))

    @property
    def false_warnings(self) -> ExactRate:
        """Healthy set-ups with a warning."""
        return ExactRate.of(sum(bool(r.warnings) for r in self.healthy), len(self.healthy))

    @property
    def seconds(self) -> float:
        """Gate time of all entries [s]."""
        return sum(r.seconds for r in self.defects) + sum(r.seconds for r in self.healthy)
