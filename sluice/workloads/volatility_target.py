"""Determines the size of a position from the forecast volatility.

Shape legend: N = rows.
"""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sluice.base.settings import Settings


class PositionSettings(Settings):
    """Settings of the conversion of a forecast to a position."""

    target_volatility: float = Field(
        0.10, gt=0, le=10, description="Target volatility [per year, share of capital]."
    )
    max_leverage: float = Field(2.0, gt=0, le=100, description="Maximum position [x capital].")
    rows_per_year: float = Field(
        252.0,
        gt=0,
        le=1e8,
        description="Number of rows per year. It is used to annualise metrics, and to convert the "
        "target volatility from one year to one row [rows].",
    )


def volatility_position(
    forecast_vol_N: NDArray[np.float64], settings: PositionSettings
) -> NDArray[np.float64]:
    """Return the long position (N,) for the target volatility [x capital].

    Formula: ``clip(target / forecast, 0, max_leverage)``. The lower the forecast, the larger the
    position.

    Args:
        forecast_vol_N: Forecast volatility of the next row [per row]; positive.
        settings: Target volatility and maximum position.
    """
    target = settings.target_volatility / np.sqrt(settings.rows_per_year)
    return np.asarray(np.clip(target / forecast_vol_N, 0.0, settings.max_leverage))
