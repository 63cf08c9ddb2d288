"""Measures the gain on the rows of a suite, with the same kind of bounds as the promotion gate.

Shape legend: S = seeds, M = scored rows of a suite.
"""

from typing import Literal

import numpy as np
from pydantic import Field

from sluice.base.pluralize import pluralize
from sluice.base.settings import Record
from sluice.evaluation.estimate import ArmLosses, estimate_gain, mean_gain
from sluice.evaluation.suites.settings import SuiteSettings
from sluice.evaluation.variance import choose_block_length, shortest_block

SAME_GAIN_MESSAGE = "the gain is the same on every row"
"""Reason why a constant gain has no bounds."""


class SuiteGain(Record):
    """Mean loss of the reference minus mean loss of the candidate, on a suite's scored rows.

    Bounds that were not computed are NaN; ``lacking`` contains the reason.
    """

    gain: float = Field(
        description="Mean gain; positive if the candidate's loss is lower [loss units]."
    )
    low: float = Field(description="One-sided lower confidence bound of the gain [loss units].")
    high: float = Field(description="One-sided upper confidence bound of the gain [loss units].")
    alpha: float = Field(description="Error rate of each bound [rate].")
    lacking: str = Field(
        "", description="Reason why the bounds were not computed; empty if they were."
    )

    @property
    def outcome(self) -> Literal["BETTER", "WORSE", "INCONCLUSIVE"]:
        """Significance of the gain; INCONCLUSIVE for NaN bounds."""
        if self.low > 0:
            return "BETTER"
        return "WORSE" if self.high < 0 else "INCONCLUSIVE"


def measure_gain(
    candidate: ArmLosses,
    reference: ArmLosses,
    settings: SuiteSettings,
    *,
    horizon_rows: int,
    no_bounds_reason: str,
) -> SuiteGain:
    """Return the mean gain on a suite's rows and its one-sided Student bounds.

    All rows are treated as one fold in time order, because a fold may contain a single row of the
    suite, from which no variance can be estimated. A difference between the mean gains of folds
    therefore widens the bounds, which is conservative. Rows depend on each other over at most
    ``horizon_rows`` rows, as in the window: a suite omits rows of the window, so two rows are never
    farther apart in the suite than in the window.

    Args:
        candidate: Losses (S, M) [loss units].
        reference: Losses on the same rows; S may differ.
        settings: Settings of suites: alpha and the minimum number of rows.
        horizon_rows: Forecast horizon of the target; 0 for independent rows [rows].
        no_bounds_reason: Reason for omitting the bounds; "" to compute them.
    """
    gain_M = mean_gain(candidate, reference)
    if gain_M.size == 0:
        nan = float("nan")
        return SuiteGain(
            gain=nan, low=nan, high=nan, alpha=settings.alpha, lacking="no rows were scored"
        )
    rounding_error = 8 * np.finfo(np.float64).eps * float(np.abs(reference.loss_SN).max())
    if not no_bounds_reason:
        if gain_M.size < settings.min_rows:
            no_bounds_reason = f"{gain_M.size} scored rows, required {settings.min_rows}"
        elif not np.isfinite(gain_M).all():
            no_bounds_reason = "non-finite losses"
        elif np.ptp(gain_M) <= rounding_error:
            no_bounds_reason = SAME_GAIN_MESSAGE
    low = high = float("nan")
    if not no_bounds_reason:
        block_length = 1
        if horizon_rows > 0:
            shortest = shortest_block(gain_M.size, horizon_rows)
            optimal = choose_block_length(gain_M - gain_M.mean(), horizon_rows)
            # The variance requires at least two blocks, so a longer optimal length is reduced.
            block_length = max(shortest, min(optimal, gain_M.size // 2))
        low, high = estimate_gain(
            candidate, reference, np.zeros(gain_M.size, np.int64), block_length=block_length
        ).bounds(settings.alpha)
        if not (np.isfinite(low) and np.isfinite(high)):
            no_bounds_reason = (
                "fewer than two seeds in an arm, or fewer than two blocks of "
                f"{pluralize(block_length, 'row')}"
            )
    return SuiteGain(
        gain=float(gain_M.mean()),
        low=low,
        high=high,
        alpha=settings.alpha,
        lacking=no_bounds_reason,
    )
