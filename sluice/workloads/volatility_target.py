"""A position sized by forecast volatility, and what it earned.

Shape legend: N = rows.
"""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sluice.settings import Settings


class PositionSettings(Settings):
    """How a forecast becomes a position."""

    target_volatility: float = Field(
        0.10, gt=0, le=10, description="Volatility aimed at [per year, rate of capital]."
    )
    max_leverage: float = Field(2.0, gt=0, le=100, description="Largest position [x capital].")
    rows_per_year: float = Field(
        252.0, gt=0, le=1e8, description="Bars in a year, for annual numbers [rows]."
    )


def volatility_position(
    forecast_vol_N: NDArray[np.float64], settings: PositionSettings
) -> NDArray[np.float64]:
    """Return the long position (N,) that aims at the target volatility [x capital].

    ``clip(target / forecast, 0, max_leverage)``: the smaller the forecast, the larger the position.

    Args:
        forecast_vol_N: Forecast volatility of the next row [per row]; positive.
        settings: Target and cap.
    """
    target = settings.target_volatility / np.sqrt(settings.rows_per_year)
    return np.asarray(np.clip(target / forecast_vol_N, 0.0, settings.max_leverage))


def sharpe(return_N: NDArray[np.float64], *, rows_per_year: float) -> float:
    """Return mean over sample deviation, per year; cash is taken to earn nothing.

    NaN when it is not defined: fewer than two rows, or returns that do not vary.

    Source:
        Sharpe (1994), "The Sharpe ratio", Journal of Portfolio Management 21(1).
    """
    if len(return_N) < 2 or np.ptp(return_N) == 0:
        return float("nan")
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
        return float("nan")
    downside = np.sqrt(np.mean(np.minimum(return_N, 0.0) ** 2))
    return float(return_N.mean() / downside * np.sqrt(rows_per_year))
