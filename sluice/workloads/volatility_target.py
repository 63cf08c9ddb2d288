"""A position sized by forecast volatility.

Shape legend: N = rows.
"""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sluice.base.settings import Settings


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
