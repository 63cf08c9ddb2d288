"""Results of the gate for each entry, and its rates over all."""

from typing import Literal

from pydantic import Field

from sluice.base.settings import Record
from sluice.bench.planted.rate import Rate
from sluice.bench.planted.score import PlantedScore, rate_of, score_planted
from sluice.findings.check_outcome import Outcome

Verdict = Literal["caught", "missed", "other check", "wrong response"]


class DefectResult(Record):
    """Result of the gate for one planted defect."""

    name: str
    check: str = Field(description="The check that must be the first to object.")
    verdict: Verdict
    objected: str = Field(description="The check that was the first to object; empty for none.")
    outcome: Outcome = Field(description="Outcome of that check; 'pass' when none objected.")
    summary: str
    cause: str
    fix: str
    absent: tuple[str, ...] = Field(
        description="Texts that its summary, cause or fix should contain and does not."
    )
    seconds: float = Field(description="Gate time [s].")

    @property
    def is_caught(self) -> bool:
        """Whether the named check failed first, with the expected texts."""
        return self.verdict == "caught"

    @property
    def is_first(self) -> bool:
        """Whether the named check failed first, with any texts."""
        return self.verdict in ("caught", "wrong response")


class HealthyResult(Record):
    """Result of the gate for one healthy set-up."""

    name: str
    objections: tuple[str, ...] = Field(description="Checks that did not pass, with summaries.")
    warnings: tuple[str, ...] = Field(description="Checks that warned, with summaries.")
    seconds: float = Field(description="Gate time [s].")

    @property
    def has_error(self) -> bool:
        """Whether a check did not pass."""
        return bool(self.objections)

    @property
    def has_warning(self) -> bool:
        """Whether a check warned."""
        return bool(self.warnings)


class BenchmarkReport(Record):
    """Results of both tables, as far as they ran."""

    defects: tuple[DefectResult, ...]
    healthy: tuple[HealthyResult, ...]

    @property
    def passed(self) -> bool:
        """Whether every defect was found and no healthy set-up failed."""
        return self.score.is_perfect

    @property
    def score(self) -> PlantedScore:
        """Rates over both tables."""
        return score_planted(self.defects, self.healthy)

    @property
    def missed(self) -> Rate | None:
        """Defects that no check found."""
        return rate_of(self.defects, lambda result: result.verdict == "missed")

    @property
    def seconds(self) -> float:
        """Gate time of all entries [s]."""
        return sum(r.seconds for r in self.defects) + sum(r.seconds for r in self.healthy)
