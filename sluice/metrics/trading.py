"""What a position earned, and at what risk (EVAL-1).

Shape legend: N = rows, in time order.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.metrics.task_metrics import (
    TaskMetrics,
    all_absent,
    predicted_values,
    truth_values,
    why_not_finite,
)

NAMES = ("sharpe", "sortino", "max_drawdown", "turnover", "hit_rate")


def trading_metrics(
    position: ArrayLike, next_return: ArrayLike, *, rows_per_year: float
) -> TaskMetrics:
    """Return sharpe, sortino, max_drawdown, turnover and hit_rate of a position, without costs.

    - sharpe, sortino: see the functions [per year];
    - max_drawdown: deepest fall from a peak of the wealth that is reinvested [rate of the peak];
    - turnover: how much is traded, entering included [x capital per year];
    - hit_rate: share of the rows with something at stake that earned.

    Absent where not defined: returns that do not vary or never fall, nothing at stake; all of them
    for positions that are not finite.

    Args:
        position: Taken at each row (N,) [x capital]; negative is short.
        next_return: Of the asset to the next row (N,) [rate].
        rows_per_year: For annual numbers [rows].

    Raises:
        ContractError: Shapes disagree, or a return is not finite.
    """
    return_N = truth_values(next_return, what="returns")
    position_N = predicted_values(position, return_N.shape, what="positions")
    if reason := why_not_finite(position_N, what="positions"):
        return all_absent(NAMES, reason)
    earned_N = position_N * return_N
    values = {
        "sharpe": sharpe(earned_N, rows_per_year=rows_per_year),
        "sortino": sortino(earned_N, rows_per_year=rows_per_year),
        "max_drawdown": max_drawdown(earned_N),
        "turnover": turnover(position_N, rows_per_year=rows_per_year),
        "hit_rate": hit_rate(earned_N),
    }
    why = {
        "sharpe": "fewer than two rows, or earnings that do not vary",
        "sortino": "no row lost anything",
        "hit_rate": "no row had anything at stake",
    }
    absent = {name: reason for name, reason in why.items() if math.isnan(values[name])}
    return TaskMetrics(
        values={name: value for name, value in values.items() if name not in absent}, absent=absent
    )


def sharpe(return_N: NDArray[np.float64], *, rows_per_year: float) -> float:
    """Return mean over sample deviation, per year; cash is taken to earn nothing.

    NaN when it is not defined: fewer than two rows, or returns that do not vary.

    Source:
        Sharpe (1994), "The Sharpe ratio", Journal of Portfolio Management 21(1).
    """
    if len(return_N) < 2 or np.ptp(return_N) == 0:
        return math.nan
    return float(return_N.mean() / return_N.std(ddof=1) * np.sqrt(rows_per_year))


def sortino(return_N: NDArray[np.float64], *, rows_per_year: float) -> float:
    """Return mean over downside deviation, per year, with 0 as the least acceptable return.

    The downside deviation is the root of the mean over **all** rows of min(return, 0) squared.
    NaN when it is not defined: no rows, or none of them negative.

    Source:
        Sortino & Price (1994), "Performance measurement in a downside risk framework", Journal of
        Investing 3(3).
    """
    if len(return_N) == 0 or not (return_N < 0).any():
        return math.nan
    downside = np.sqrt(np.mean(np.minimum(return_N, 0.0) ** 2))
    return float(return_N.mean() / downside * np.sqrt(rows_per_year))


def max_drawdown(return_N: NDArray[np.float64]) -> float:
    """Return the deepest fall of compounded wealth below its peak [rate of the peak, 0 to 1].

    Wealth starts at 1, the first peak. A loss of all or more ends it: 1.

    >>> max_drawdown(np.array([0.5, -0.5, 1.0]))
    0.5
    """
    wealth_N = np.cumprod(np.maximum(1.0 + return_N, 0.0))
    peak_N = np.maximum.accumulate(np.maximum(wealth_N, 1.0))
    return float(np.max(1.0 - wealth_N / peak_N, initial=0.0))


def turnover(position_N: NDArray[np.float64], *, rows_per_year: float) -> float:
    """Return the mean change of the position, per year, from none before the first row.

    >>> turnover(np.array([1.0, 1.0, -1.0]), rows_per_year=10)
    10.0
    """
    return float(np.abs(np.diff(position_N, prepend=0.0)).mean() * rows_per_year)


def hit_rate(return_N: NDArray[np.float64]) -> float:
    """Return the share of returns above 0 among those that are not 0; NaN when all are 0."""
    at_stake = int((return_N != 0).sum())
    return float((return_N > 0).sum() / at_stake) if at_stake else math.nan
