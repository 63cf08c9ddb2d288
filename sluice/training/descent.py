"""Finds the steepest significant descent of a noisy curve of loss over learning rate.

Shape legend: N = steps, W = steps of a window, C = N - W + 1 windows.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from pydantic import Field, model_validator

from sluice.base.settings import Settings

ROUNDING_SHARE = 10 * float(np.finfo(np.float32).eps)
"""Decreases smaller than this share of the loss count as rounding errors."""

_WIDTH_MULTIPLES = (1, 2, 4)
"""Window widths that are tried, in multiples of the narrowest width. The standard error of a slope
decreases with the width to the power 1.5. So a wide window can detect a descent that is hidden by
noise in a narrow window."""


class RangeTestSettings(Settings):
    """Learning rates that a range test tries, and its criteria for a descent."""

    lowest_rate: float = Field(1e-7, gt=0, le=1, description="First and lowest learning rate.")
    highest_rate: float = Field(10.0, gt=0, le=1000, description="Last and highest learning rate.")
    num_steps: int = Field(
        200, ge=20, le=100_000, description="Number of optimizer steps, one per learning rate."
    )
    window_decades: float = Field(
        0.8,
        gt=0,
        le=4,
        description="Width of the narrowest window to which a line is fitted [decades].",
    )
    confidence: float = Field(
        0.99, gt=0.5, lt=1, description="Probability of finding no descent if there is no descent."
    )
    diverged_ratio: float = Field(
        4.0,
        ge=1,
        description="The test stops when the loss minus the initial loss exceeds this ratio times "
        "(largest decrease + standard deviation between batches).",
    )

    @model_validator(mode="after")
    def _require_valid_rates_and_window(self) -> "RangeTestSettings":
        if not self.lowest_rate < self.highest_rate:
            raise ValueError(
                "lowest_rate must be below highest_rate, "
                f"got {self.lowest_rate:g} and {self.highest_rate:g}"
            )
        if not 5 <= self.window_steps <= self.num_steps // 2:
            raise ValueError(
                f"window_decades {self.window_decades:g} must contain 5 to {self.num_steps // 2} "
                f"of the {self.num_steps} steps, but contains {self.window_steps}: change "
                "window_decades or num_steps"
            )
        return self

    @property
    def step_decades(self) -> float:
        """Ratio of two consecutive learning rates [decades]."""
        return math.log10(self.highest_rate / self.lowest_rate) / (self.num_steps - 1)

    @property
    def window_steps(self) -> int:
        """Number of steps of the narrowest window; always odd."""
        return 2 * round(self.window_decades / self.step_decades / 2) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLines:
    """Straight lines fitted to windows of the curve; one entry per window centre."""

    window_steps: int
    """Width of the windows [steps]."""
    mean_C: NDArray[np.float64]
    """Mean loss of each window."""
    slope_C: NDArray[np.float64]
    """Slope of each line [loss per decade of the learning rate]."""
    error_C: NDArray[np.float64]
    """Standard error of each slope."""


def find_steepest_descent(
    loss_N: NDArray[np.float64], settings: RangeTestSettings
) -> tuple[WindowLines, int | None]:
    """Find the narrowest window width with a significant descent, and its steepest descent.

    Args:
        loss_N: Losses at evenly spaced logarithms of the learning rate.
        settings: Spacing of the learning rates, narrowest width, confidence.

    Returns:
        The lines of this width, and the index of the steepest significant line. If no width has a
        significant descent: the lines of the narrowest width, and None.
    """
    narrowest_width = settings.window_steps
    widths = [width * (narrowest_width - 1) + 1 for width in _WIDTH_MULTIPLES]
    lines_by_width = [_fit_windows(loss_N, width, settings.step_decades) for width in widths]
    for lines in lines_by_width:
        significant_C = _descends_significantly(lines, settings)
        if significant_C.any():
            return lines, int(np.where(significant_C, lines.slope_C, np.inf).argmin())
    return lines_by_width[0], None


def _fit_windows(loss_N: NDArray[np.float64], window: int, step_decades: float) -> WindowLines:
    if len(loss_N) < window:
        empty = np.empty(0)
        return WindowLines(window_steps=window, mean_C=empty, slope_C=empty, error_C=empty)
    x_W = step_decades * (np.arange(window) - window // 2)
    loss_CW = sliding_window_view(loss_N, window)
    mean_C = loss_CW.mean(axis=1)
    centred_CW = loss_CW - mean_C[:, None]
    sum_of_squares = float(x_W @ x_W)
    slope_C = centred_CW @ x_W / sum_of_squares
    residual_CW = centred_CW - slope_C[:, None] * x_W
    variance_C = (residual_CW**2).sum(axis=1) / (window - 2)
    error_C = np.sqrt(variance_C / sum_of_squares)
    return WindowLines(window_steps=window, mean_C=mean_C, slope_C=slope_C, error_C=error_C)


def _descends_significantly(lines: WindowLines, settings: RangeTestSettings) -> NDArray[np.bool_]:
    """Return in which windows the loss descends significantly.

    Windows after the lowest mean loss do not count.
    """
    # scipy.special has the same quantile as scipy.stats, which takes a second to import.
    from scipy.special import stdtrit

    num_windows = len(lines.slope_C)
    if not num_windows:
        return np.zeros(0, dtype=bool)
    alpha = (1 - settings.confidence) / num_windows / len(_WIDTH_MULTIPLES)  # Bonferroni correction
    required_t = float(stdtrit(lines.window_steps - 2, 1 - alpha))
    decrease_C = -lines.slope_C * settings.step_decades * lines.window_steps
    significant_C: NDArray[np.bool_] = (
        (-lines.slope_C > required_t * lines.error_C)
        & (decrease_C > ROUNDING_SHARE * np.abs(lines.mean_C))
        & (np.arange(num_windows) <= int(lines.mean_C.argmin()))
    )
    return significant_C
