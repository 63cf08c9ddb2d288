"""Where a noisy curve of loss over learning rate falls most steeply, if it falls at all (TRAIN-2).

Shape legend: N = steps, W = steps of a window, C = N - W + 1 windows.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from pydantic import Field, model_validator

from sluice.base.settings import Settings

ROUNDING = 10 * float(np.finfo(np.float32).eps)
"""A fall below this share of the loss is rounding."""

_WIDTHS = (1, 2, 4)
"""Windows tried, in multiples of the narrowest. The error of a slope falls with the width to the
power 1.5, and where batches differ much a narrow window shows no descent that a wide one does."""


class RangeTestSettings(Settings):
    """How the rates are tried and what counts as a descent."""

    lowest_rate: float = Field(1e-7, gt=0, le=1, description="First rate tried.")
    highest_rate: float = Field(10.0, gt=0, le=1000, description="Last rate tried.")
    num_steps: int = Field(200, ge=20, le=100_000, description="Optimizer steps, one a rate.")
    window_decades: float = Field(
        0.8, gt=0, le=4, description="Narrowest width of a fitted slope [factors of ten]."
    )
    confidence: float = Field(
        0.99, gt=0.5, lt=1, description="Chance of no descent found where there is none."
    )
    diverged_ratio: float = Field(
        4.0,
        ge=1,
        description="Stop when the loss is this many times further above its start than it had "
        "fallen and than batches differ, both together.",
    )

    @model_validator(mode="after")
    def _enough_steps(self) -> "RangeTestSettings":
        if not self.lowest_rate < self.highest_rate:
            raise ValueError(
                "lowest_rate must be below highest_rate, "
                f"got {self.lowest_rate:g} and {self.highest_rate:g}"
            )
        if not 5 <= self.window_steps <= self.num_steps // 2:
            raise ValueError(
                f"window_decades {self.window_decades:g} must hold 5 to {self.num_steps // 2} of "
                f"the {self.num_steps} steps, it holds {self.window_steps}: change one of the two"
            )
        return self

    @property
    def step_decades(self) -> float:
        """Distance of two rates [factors of ten]."""
        return math.log10(self.highest_rate / self.lowest_rate) / (self.num_steps - 1)

    @property
    def window_steps(self) -> int:
        """Steps of a window, always odd."""
        return 2 * round(self.window_decades / self.step_decades / 2) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Slopes:
    """Straight lines fitted to windows of the curve; one entry per centre of a window."""

    window: int
    mean_C: NDArray[np.float64]
    slope_C: NDArray[np.float64]
    error_C: NDArray[np.float64]


def steepest_descent(
    loss_N: NDArray[np.float64], settings: RangeTestSettings
) -> tuple[Slopes, int | None]:
    """Return the lines of the narrowest width that shows a descent, and which is steepest.

    Args:
        loss_N: Losses at evenly spaced logarithms of the rate.
        settings: Distance of the rates, narrowest width, confidence.

    Returns:
        The lines, and the index of the steepest; without a descent those of the narrowest width,
        and None.
    """
    narrowest = settings.window_steps
    widths = [width * (narrowest - 1) + 1 for width in _WIDTHS]
    fitted = [_fit_windows(loss_N, width, settings.step_decades) for width in widths]
    for fits in fitted:
        sure_C = _sure(fits, settings)
        if sure_C.any():
            return fits, int(np.where(sure_C, fits.slope_C, np.inf).argmin())
    return fitted[0], None


def _fit_windows(loss_N: NDArray[np.float64], window: int, step_decades: float) -> Slopes:
    if len(loss_N) < window:
        none = np.empty(0)
        return Slopes(window=window, mean_C=none, slope_C=none, error_C=none)
    x_W = step_decades * (np.arange(window) - window // 2)
    loss_CW = sliding_window_view(loss_N, window)
    mean_C = loss_CW.mean(axis=1)
    centred_CW = loss_CW - mean_C[:, None]
    spread = float(x_W @ x_W)
    slope_C = centred_CW @ x_W / spread
    residual_CW = centred_CW - slope_C[:, None] * x_W
    variance_C = (residual_CW**2).sum(axis=1) / (window - 2)
    error_C = np.sqrt(variance_C / spread)
    return Slopes(window=window, mean_C=mean_C, slope_C=slope_C, error_C=error_C)


def _sure(fits: Slopes, settings: RangeTestSettings) -> NDArray[np.bool_]:
    """Return which windows fall beyond doubt, up to the lowest."""
    # scipy.special, not scipy.stats: the same quantile without a second of import.
    from scipy.special import stdtrit

    num_windows = len(fits.slope_C)
    if not num_windows:
        return np.zeros(0, dtype=bool)
    doubt = (1 - settings.confidence) / num_windows / len(_WIDTHS)
    required = float(stdtrit(fits.window - 2, 1 - doubt))
    fall_C = -fits.slope_C * settings.step_decades * fits.window
    sure_C: NDArray[np.bool_] = (
        (-fits.slope_C > required * fits.error_C)
        & (fall_C > ROUNDING * np.abs(fits.mean_C))
        & (np.arange(num_windows) <= int(fits.mean_C.argmin()))
    )
    return sure_C
