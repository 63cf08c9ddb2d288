"""What a candidate did on each suite, row by row, and whether its guards hold."""

from typing import Literal

import numpy as np
from pydantic import Field

from sluice.base.settings import Record
from sluice.evaluation.suites.gain import SuiteGain
from sluice.evaluation.suites.suite import Origin
from sluice.findings.finding import Standout
from sluice.verdicts.guard_outcome import GuardOutcome, GuardResult

Change = Literal["fixed", "broken", "still wrong", "still right"]
CHANGES: tuple[Change, ...] = ("fixed", "broken", "still wrong", "still right")
Suspect = Literal["model", "data", "none"]


class RowResult(Record):
    """One scored row of a suite; losses are means over seeds [loss units]."""

    label: str
    fold_id: int
    change: Change = Field(description="From the reference to the candidate.")
    suspect: Suspect = Field(
        description="'data' when every seed of candidate and reference and the baseline are wrong "
        "too, 'model' when only the candidate need be, 'none' when it is right."
    )
    candidate_loss: float
    reference_loss: float
    baseline_loss: float
    standouts: tuple[Standout, ...] = Field(description="Unusual features, of all test rows.")
    reason: str = Field(description="Why the row is in the suite.")


class SuiteResult(Record):
    """One candidate on one version of a suite."""

    name: str
    version: int
    digest: str = Field(description="Of the suite.")
    origin: Origin = Field(description="How the suite's rows were chosen.")
    num_rows: int = Field(description="Rows of the suite, scored or not.")
    rows: tuple[RowResult, ...] = Field(description="The scored ones, in time order.")
    gone: tuple[str, ...] = Field(description="Rows that are not in the data any more.")
    seen: tuple[str, ...] = Field(description="Rows the candidate was trained on: not scored.")
    unscored: tuple[str, ...] = Field(description="Rows of no test window.")
    gain: SuiteGain
    lacking: tuple[str, ...] = Field(description="What keeps the result from being evidence.")

    def count(self, change: Change) -> int:
        """Return how many scored rows changed so."""
        return sum(row.change == change for row in self.rows)

    def suspects(self, suspect: Suspect) -> int:
        """Return how many scored rows have this suspect."""
        return sum(row.suspect == suspect for row in self.rows)

    @property
    def broken_share(self) -> float:
        """Of the scored rows; NaN without any."""
        return self.count("broken") / len(self.rows) if self.rows else float("nan")

    @property
    def scored_share(self) -> float:
        """Of the suite's rows that could be scored."""
        return len({row.label for row in self.rows}) / self.num_rows

    @property
    def candidate_loss(self) -> float:
        """Mean over scored rows; NaN without any."""
        return _mean([row.candidate_loss for row in self.rows])

    @property
    def reference_loss(self) -> float:
        """Mean over scored rows; NaN without any."""
        return _mean([row.reference_loss for row in self.rows])

    @property
    def baseline_loss(self) -> float:
        """Mean over scored rows; NaN without any."""
        return _mean([row.baseline_loss for row in self.rows])

    def examples(self, count: int) -> tuple[RowResult, ...]:
        """Return rows to look at: broken before still wrong before fixed, worst loss first."""
        order: dict[Change, int] = {"broken": 0, "still wrong": 1, "fixed": 2, "still right": 3}

        def rank(row: RowResult) -> tuple[int, float]:
            loss = row.candidate_loss
            return order[row.change], -loss if np.isfinite(loss) else -np.inf

        return tuple(sorted(self.rows, key=rank)[:count])


class GuardVerdict(Record):
    """Whether a suite that must hold does."""

    suite: str
    version: int | None = Field(description="None when there is no such suite.")
    outcome: GuardResult
    reason: str = Field(description="One sentence for people.")
    remedy: str = Field("", description="What to do; empty when it holds.")


class SuiteReport(Record):
    """One candidate on all suites of its pipeline."""

    candidate: str = Field(description="Digest of the candidate.")
    reference: str = Field(description="Digest of what it would replace.")
    window: str = Field(description="Digest of the data and rows scored.")
    unit: str = Field(description="Of the losses.")
    threshold: float | None = Field(
        description="A row with a higher loss is wrong [unit]; None where mistakes are counted."
    )
    results: tuple[SuiteResult, ...]
    guards: tuple[GuardVerdict, ...]

    @property
    def passed(self) -> bool:
        """True when every guard passes; without guards nothing is asked for."""
        return all(guard.outcome == "pass" for guard in self.guards)

    @property
    def outcome(self) -> GuardResult:
        """Of all guards: a failure outweighs missing evidence."""
        if self.passed:
            return "pass"
        return "fail" if any(g.outcome == "fail" for g in self.guards) else "insufficient"

    @property
    def guard_outcomes(self) -> tuple[GuardOutcome, ...]:
        """What the guards say to the promotion gate."""
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
        """One sentence for people."""
        blocking = [guard for guard in self.guards if guard.outcome != "pass"]
        if blocking:
            more = f" ({len(blocking) - 1} more)" if len(blocking) > 1 else ""
            return f"{blocking[0].reason}{more}"
        if not self.guards:
            return f"Suites run: {len(self.results)}; none of them is a guard."
        return f"Guards that hold: all {len(self.guards)}."


def _mean(losses: list[float]) -> float:
    return float(np.mean(losses)) if losses else float("nan")
