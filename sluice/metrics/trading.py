"""Computes return and risk metrics of a position over time.

Shape legend: N = rows, in time order.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.metrics.task_metrics import (
    TaskMetrics,
    non_finite_reason,
    undefined_metrics,
    validate_predictions,
    validate_targets,
)

METRIC_NAMES = ("sharpe", "sortino", "max_drawdown", "turnover", "hit_rate")


def trading_metrics(
    position: ArrayLike, next_return: ArrayLike, *, rows_per_year: float
) -> TaskMetrics:
    """Return sharpe, sortino, max_drawdown, turnover and hit_rate of a position, without costs.

    - sharpe, sortino: annualised ratios, see ``sharpe`` and ``sortino``;
    - max_drawdown: largest decline of compounded wealth from a peak [rate of the peak];
    - turnover: traded volume, including the first trade [x capital per year];
    - hit_rate: share of gains among the rows on which the position earned or lost something.

    Undefined metrics are absent: sharpe for constant returns, sortino without losses, hit_rate
    without nonzero returns; all of them for non-finite positions.

    Args:
        position: Position at each row (N,) [x capital]; negative is short.
        next_return: Return of the asset from this row to the next one (N,) [rate].
        rows_per_year: Rows per year, for annualised metrics [rows].

    Raises:
        ContractError: Shapes do not match, or a return is non-finite.
    """
    return_N = validate_targets(next_return, what="returns")
    position_N = validate_predictions(position, return_N.shape, what="positions")
    if reason := non_finite_reason(position_N, what="positions"):
        return undefined_metrics(METRIC_NAMES, reason)
    profit_N = position_N * return_N
    values = {
        "sharpe": sharpe(profit_N, rows_per_year=rows_per_year),
        "sortino": sortino(profit_N, rows_per_year=rows_per_year),
        "max_drawdown": max_drawdown(profit_N),
        "turnover": turnover(position_N, rows_per_year=rows_per_year),
        "hit_rate": hit_rate(profit_N),
    }
    reasons = {
        "sharpe": "fewer than two rows, or constant returns of the position",
        "sortino": "no row has a loss",
        "hit_rate": "no row has a nonzero return",
    }
    absent = {name: reason for name, reason in reasons.items() if math.isnan(values[name])}
    return TaskMetrics(
        values={name: value for name, value in values.items() if name not in absent}, absent=absent
    )


def sharpe(return_N: NDArray[np.float64], *, rows_per_year: float) -> float:
    """Return mean over sample standard deviation, annualised, with a risk-free rate of 0.

    NaN if undefined: fewer than two rows, or constant returns.

    Source:
        Sharpe (1994), "The Sharpe ratio", Journal of Portfolio Management 21(1).
    """
    if len(return_N) < 2 or np.ptp(return_N) == 0:
        return math.nan
    return float(return_N.mean() / return_N.std(ddof=1) * np.sqrt(rows_per_year))


def sortino(return_N: NDArray[np.float64], *, rows_per_year: float) -> float:
    """Return mean over downside deviation, annualised, with a minimum acceptable return of 0.

    The downside deviation is the root of the mean over **all** rows of min(return, 0) squared.
    NaN if undefined: no rows, or no negative return.

    Source:
        Sortino & Price (1994), "Performance measurement in a downside risk framework", Journal of
        Investing 3(3).
    """
    if len(return_N) == 0 or not (return_N < 0).any():
        return math.nan
    downside = np.sqrt(np.mean(np.minimum(return_N, 0.0) ** 2))
    return float(return_N.mean() / downside * np.sqrt(rows_per_year))


def max_drawdown(return_N: NDArray[np.float64]) -> float:
    """Return the largest decline of compounded wealth below its peak [rate of the peak, 0 to 1].

    Wealth starts at 1, the first peak. A total loss gives 1.

    >>> max_drawdown(np.array([0.5, -0.5, 1.0]))
    0.5
    """
    wealth_N = np.cumprod(np.maximum(1.0 + return_N, 0.0))
    peak_N = np.maximum.accumulate(np.maximum(wealth_N, 1.0))
    return float(np.max(1.0 - wealth_N / peak_N, initial=0.0))


def turnover(position_N: NDArray[np.float64], *, rows_per_year: float) -> float:
    """Return the mean absolute change of the position, per year, starting from 0.

    >>> turnover(np.array([1.0, 1.0, -1.0]), rows_per_year=10)
    10.0
    """
    return float(np.abs(np.diff(position_N, prepend=0.0)).mean() * rows_per_year)


def hit_rate(return_N: NDArray[np.float64]) -> float:
    """Return the share of positive returns among the nonzero returns; NaN if all are 0."""
    num_nonzero = int((return_N != 0).sum())
    return float((return_N > 0).sum() / num_nonzero) if num_nonzero else math.nan
