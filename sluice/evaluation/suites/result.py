"""Results of a candidate on regression suites: by row, by suite and by guard."""

from typing import Literal

import numpy as np
from pydantic import Field

from sluice.base.settings import Record
from sluice.evaluation.suites.gain import SuiteGain
from sluice.evaluation.suites.suite import Origin
from sluice.findings.check_outcome import UnusualFeature
from sluice.verdicts.guard_outcome import GuardOutcome, GuardResult

Change = Literal["fixed", "broken", "still wrong", "still right"]
"""Change of a row from the reference to the candidate: 'fixed' is from wrong to right, 'broken'
from right to wrong."""
CHANGES: tuple[Change, ...] = ("fixed", "broken", "still wrong", "still right")
Suspect = Literal["model", "data", "none"]
"""Suspected reason why the candidate is wrong on a row."""


class RowResult(Record):
    """Result of one scored row; losses are means over seeds [loss units]."""

    label: str
    description: str = Field(
        "", description="Value of the display column of the workload; empty without one."
    )
    fold_id: int
    change: Change = Field(description="Change from the reference to the candidate.")
    suspect: Suspect = Field(
        description="'none' if the candidate is right; 'data' if the baseline and every seed of "
        "both the candidate and the reference are wrong; 'model' otherwise."
    )
    candidate_loss: float
    reference_loss: float
    baseline_loss: float
    standouts: tuple[UnusualFeature, ...] = Field(description="Unusual features of the row.")
    reason: str = Field(description="Reason why the row is in the suite.")


class SuiteResult(Record):
    """Result of a candidate on one version of a suite."""

    name: str
    version: int
    digest: str = Field(description="Digest of the suite.")
    origin: Origin = Field(description="How the rows of the suite were selected.")
    num_rows: int = Field(description="Number of rows of the suite, scored or not.")
    rows: tuple[RowResult, ...] = Field(description="Scored rows, in time order.")
    gone: tuple[str, ...] = Field(
        description="Labels of the suite's rows that are no longer in the data."
    )
    seen: tuple[str, ...] = Field(
        description="Labels of the suite's rows on which the candidate was trained."
    )
    unscored: tuple[str, ...] = Field(
        description="Labels of the suite's rows that are in no test window."
    )
    gain: SuiteGain
    lacking: tuple[str, ...] = Field(description="Reasons why the result is not valid evidence.")

    def count(self, change: Change) -> int:
        """Return the number of scored rows with this change."""
        return sum(row.change == change for row in self.rows)

    def count_suspects(self, suspect: Suspect) -> int:
        """Return the number of scored rows with this suspect."""
        return sum(row.suspect == suspect for row in self.rows)

    @property
    def broken_share(self) -> float:
        """Share of broken rows among the scored rows; NaN without scored rows."""
        return self.count("broken") / len(self.rows) if self.rows else float("nan")

    @property
    def scored_share(self) -> float:
        """Share of the suite's rows that were scored."""
        return len({row.label for row in self.rows}) / self.num_rows

    @property
    def candidate_loss(self) -> float:
        """Mean loss of the candidate over scored rows; NaN without scored rows."""
        return _mean([row.candidate_loss for row in self.rows])

    @property
    def reference_loss(self) -> float:
        """Mean loss of the reference over scored rows; NaN without scored rows."""
        return _mean([row.reference_loss for row in self.rows])

    @property
    def baseline_loss(self) -> float:
        """Mean loss of the baseline over scored rows; NaN without scored rows."""
        return _mean([row.baseline_loss for row in self.rows])

    def examples(self, count: int) -> tuple[RowResult, ...]:
        """Return up to ``count`` rows: broken, still wrong, fixed, still right.

        Rows with the same change are sorted by descending loss of the candidate.
        """
        priority: dict[Change, int] = {"broken": 0, "still wrong": 1, "fixed": 2, "still right": 3}

        def rank(row: RowResult) -> tuple[int, float]:
            loss = row.candidate_loss
            return priority[row.change], -loss if np.isfinite(loss) else -np.inf

        return tuple(sorted(self.rows, key=rank)[:count])


class SuiteGuardOutcome(Record):
    """Outcome of the guard of one suite."""

    suite: str
    version: int | None = Field(
        description="Version of the suite; None if the suite does not exist."
    )
    outcome: GuardResult
    reason: str = Field(description="Reason of the outcome in one sentence.")
    remedy: str = Field("", description="What to do; empty if the guard passes.")


class SuiteReport(Record):
    """Results of a candidate on all suites of its pipeline."""

    candidate: str = Field(description="Digest of the candidate.")
    reference: str = Field(description="Digest of the reference.")
    window: str = Field(description="Digest of the scored data and rows.")
    unit: str = Field(description="Unit of the losses.")
    threshold: float | None = Field(
        description="Loss above which an arm is wrong on a row [unit]; None for classifiers."
    )
    results: tuple[SuiteResult, ...]
    guards: tuple[SuiteGuardOutcome, ...]

    @property
    def passed(self) -> bool:
        """True if all guards pass, or if there are no guards."""
        return all(guard.outcome == "pass" for guard in self.guards)

    @property
    def outcome(self) -> GuardResult:
        """Outcome of all guards; a failure takes precedence over insufficient evidence."""
        if self.passed:
            return "pass"
        return "fail" if any(guard.outcome == "fail" for guard in self.guards) else "insufficient"

    @property
    def guard_outcomes(self) -> tuple[GuardOutcome, ...]:
        """Outcomes of the guards for the promotion gate."""
        return tuple(
            GuardOutcome(
                name=f"suite {guard.suite}",
                result=guard.outcome,
                observed=float("nan"),
                required=float("nan"),
                reason=guard.reason,
            )
            for guard in self.guards
        )

    @property
    def reason(self) -> str:
        """Summary of the guards in one sentence."""
        blocking_guards = [guard for guard in self.guards if guard.outcome != "pass"]
        if blocking_guards:
            more = f" ({len(blocking_guards) - 1} more)" if len(blocking_guards) > 1 else ""
            return f"{blocking_guards[0].reason}{more}"
        if not self.guards:
            return f"Suites: {len(self.results)}, without guards."
        return f"All guards pass ({len(self.guards)})."


def _mean(losses: list[float]) -> float:
    return float(np.mean(losses)) if losses else float("nan")
