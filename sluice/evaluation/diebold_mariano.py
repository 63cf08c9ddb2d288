"""The Diebold-Mariano test with the small-sample correction of Harvey, Leybourne and Newbold.

This secondary test does not affect the decision, because it ignores the variance over seeds: it
compares seed-averaged losses.

Shape legend: N = rows, n = rows of one fold.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr


class DieboldMariano(NamedTuple):
    """Statistic (Student's t with N - 1 degrees of freedom) and one-sided p-value."""

    statistic: float
    p_value: float


def diebold_mariano(
    gain_N: NDArray[np.float64], fold_N: NDArray[np.int64], *, horizon_rows: int
) -> DieboldMariano:
    """Test one-sided whether the mean of the seed-averaged gains is positive.

    The variance includes the autocovariances up to lag horizon - 1 with weight 1, but no products
    of rows from different folds. With one fold and a horizon of one row, the test is the paired
    t-test.

    Args:
        gain_N: Loss of the reference minus loss of the candidate (N,).
        fold_N: Fold of each row (N,); within a fold the rows are in time order.
        horizon_rows: Forecast horizon of the target; 0 counts as 1 [rows].

    Returns:
        The statistic and the p-value. Both are NaN if a gain is not finite, if there are too few
        rows for the horizon, or if the variance is not positive. With weight 1 for all lags, the
        estimated variance may be negative.

    Source:
        Diebold & Mariano (1995), J. Business & Economic Statistics 13(3); Harvey, Leybourne &
        Newbold (1997), International J. of Forecasting 13(2), equations 5 and 9.
    """
    horizon, num_rows = max(1, horizon_rows), gain_N.size
    centred_N = gain_N - gain_N.mean()
    fold_gains = [centred_N[fold_N == fold] for fold in np.unique(fold_N)]
    autocovariance_sum = math.fsum(float(x_n @ x_n) for x_n in fold_gains) + 2 * math.fsum(
        float(x_n[lag:] @ x_n[:-lag])
        for x_n in fold_gains
        for lag in range(1, min(horizon, x_n.size))
    )
    small_sample_correction = (
        num_rows + 1 - 2 * horizon + horizon * (horizon - 1) / num_rows
    ) / num_rows
    if num_rows < 2 or not autocovariance_sum > 0 or not small_sample_correction > 0:
        return DieboldMariano(math.nan, math.nan)
    uncorrected_statistic = float(gain_N.mean()) / math.sqrt(autocovariance_sum) * num_rows
    statistic = uncorrected_statistic * math.sqrt(small_sample_correction)
    return DieboldMariano(statistic, float(stdtr(num_rows - 1, -statistic)))
