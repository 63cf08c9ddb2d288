"""Results of the POC gate for planted defects and healthy set-ups, and the rates over all."""

from typing import Literal

from pydantic import Field

from sluice.base.settings import Record
from sluice.bench.planted.rate import Rate
from sluice.bench.planted.score import PlantedScore, rate_of, score_planted
from sluice.findings.check_outcome import Outcome

Verdict = Literal["caught", "missed", "other check", "wrong response"]


class DefectResult(Record):
    """Result of the POC gate, or of a validator, for one planted defect."""

    name: str
    check: str = Field(description="Name of the check that must be the first to report the defect.")
    verdict: Verdict
    first_check: str = Field(
        description="Name of the first check that reported a problem; empty if no check did."
    )
    outcome: Outcome = Field(
        description="Outcome of the first check that reported a problem; 'pass' if no check did."
    )
    summary: str
    cause: str
    fix: str
    missing_texts: tuple[str, ...] = Field(
        description="Texts that summary, cause or fix of the first check should contain but do not."
    )
    seconds: float = Field(description="Sum of the times of all checks [s].")

    @property
    def is_caught(self) -> bool:
        """Whether the named check was the first to report a problem, with the expected texts."""
        return self.verdict == "caught"

    @property
    def is_first(self) -> bool:
        """Whether the named check was the first to report a problem, with any texts."""
        return self.verdict in ("caught", "wrong response")


class HealthyResult(Record):
    """Result of the POC gate for one healthy set-up."""

    name: str
    objections: tuple[str, ...] = Field(
        description="Names and summaries of the checks that did not pass."
    )
    warnings: tuple[str, ...] = Field(description="Names and summaries of the checks that warned.")
    seconds: float = Field(description="Duration of the gate [s].")

    @property
    def has_error(self) -> bool:
        """Whether a check did not pass."""
        return bool(self.objections)

    @property
    def has_warning(self) -> bool:
        """Whether a check warned."""
        return bool(self.warnings)


class PocBenchmarkReport(Record):
    """Results of the planted defects and healthy set-ups that ran."""

    defects: tuple[DefectResult, ...]
    healthy: tuple[HealthyResult, ...]

    @property
    def passed(self) -> bool:
        """Whether every defect was caught and no healthy set-up failed."""
        return self.score.is_perfect

    @property
    def score(self) -> PlantedScore:
        """Rates over the planted defects and the healthy set-ups."""
        return score_planted(self.defects, self.healthy)

    @property
    def miss_rate(self) -> Rate | None:
        """Share of the defects that no check reported; None without defects."""
        return rate_of(self.defects, lambda result: result.verdict == "missed")

    @property
    def seconds(self) -> float:
        """Time of all runs of the gate [s]."""
        defects_s = sum(result.seconds for result in self.defects)
        return defects_s + sum(result.seconds for result in self.healthy)
