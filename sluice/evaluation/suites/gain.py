"""The gain on a suite's rows with its bounds, by the gate's own variance.

Shape legend: S = seeds, M = scored rows of a suite.
"""

from typing import Literal

import numpy as np
from pydantic import Field

from sluice.base.settings import Record
from sluice.evaluation.estimate import Arm, estimate_gain, mean_gain
from sluice.evaluation.suites.settings import SuiteSettings
from sluice.evaluation.variance import choose_block_length, shortest_block


class SuiteGain(Record):
    """Reference's mean loss less candidate's, on the scored rows of one suite.

    Bounds that cannot be computed are NaN, and ``lacking`` says why.
    """

    gain: float = Field(description="Positive when the candidate's loss is lower [loss units].")
    low: float = Field(description="One-sided lower bound [loss units].")
    high: float = Field(description="One-sided upper bound [loss units].")
    alpha: float = Field(description="Error rate of each bound [rate].")
    lacking: str = Field("", description="What keeps the bounds from being computed.")

    @property
    def outcome(self) -> Literal["BETTER", "WORSE", "INCONCLUSIVE"]:
        """What is proven; NaN proves nothing."""
        if self.low > 0:
            return "BETTER"
        return "WORSE" if self.high < 0 else "INCONCLUSIVE"


def measure_gain(
    candidate: Arm, reference: Arm, settings: SuiteSettings, *, horizon_rows: int, lacking: str
) -> SuiteGain:
    """Return the mean gain of a suite's rows and its one-sided Student bounds.

    All rows are taken as one fold in time order: a suite may have one row in a fold, of which
    nothing could be estimated. A shift between folds then widens the bounds, which is the safe
    side. Neighbours in a suite are at least as far apart as in the window, so blocks as long as
    the horizon asks for are long enough.

    Args:
        candidate: Losses (S, M) [loss units].
        reference: Losses on the same rows; S may differ.
        settings: Thresholds.
        horizon_rows: How many rows ahead a target looks [rows]; 0 for independent rows.
        lacking: What else forbids bounds; empty when nothing does.
    """
    gain_M = mean_gain(candidate, reference)
    if gain_M.size == 0:
        nan = float("nan")
        return SuiteGain(
            gain=nan, low=nan, high=nan, alpha=settings.alpha, lacking="no row was scored"
        )
    rounding = 8 * np.finfo(np.float64).eps * float(np.abs(reference.loss_SN).max())
    if not lacking:
        if gain_M.size < settings.min_rows:
            lacking = f"{gain_M.size} scored rows, required {settings.min_rows}"
        elif not np.isfinite(gain_M).all():
            lacking = "losses that are not finite"
        elif np.ptp(gain_M) <= rounding:
            lacking = "the gain is the same on every row"
    low = high = float("nan")
    if not lacking:
        block_length = 1
        if horizon_rows > 0:
            shortest = shortest_block(gain_M.size, horizon_rows)
            # With fewer than two blocks nothing can be estimated, however long the best one is.
            best = choose_block_length(gain_M - gain_M.mean(), horizon_rows)
            block_length = max(shortest, min(best, gain_M.size // 2))
        low, high = estimate_gain(
            candidate, reference, np.zeros(gain_M.size, np.int64), block_length=block_length
        ).bounds(settings.alpha)
        if not (np.isfinite(low) and np.isfinite(high)):
            lacking = f"fewer than two seeds in an arm, or than two blocks of {block_length} rows"
    return SuiteGain(
        gain=float(gain_M.mean()), low=low, high=high, alpha=settings.alpha, lacking=lacking
    )
