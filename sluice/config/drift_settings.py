"""What may vary about watching for drift (ROLL-3)."""

import math
from typing import Self

from pydantic import Field, model_validator

from sluice.base.settings import Settings

SMALLEST_WINDOW = 30
"""No setting lets a smaller window decide [rows]."""


class DriftSettings(Settings):
    """When a window of rows differs from the reference by more than chance explains."""

    alpha: float = Field(
        0.03,
        gt=0,
        lt=0.5,
        description="False alarms per window, all columns together [rate]; strongly dependent rows "
        "exceed it by about a quarter.",
    )
    window_rows: int = Field(
        500,
        ge=SMALLEST_WINDOW,
        description="Rows of the windows that will be judged: thresholds for this size are kept "
        "with the reference, those for another size are computed when it is judged [rows].",
    )
    min_rows: int = Field(
        100, ge=SMALLEST_WINDOW, description="Smaller windows decide nothing [rows]."
    )
    min_blocks: int = Field(
        4,
        ge=2,
        description="A window decides nothing about a column unless it holds so many blocks of "
        "rows that depend on each other.",
    )
    max_columns: int = Field(
        128,
        ge=1,
        le=10_000,
        description="Columns compared at most, one by one and together: of a wider table a random "
        "sample is taken, and the rest is reported as left out. Time and memory grow with its "
        "square, as each column needs resamples in proportion to their number [columns].",
    )
    num_cells: int = Field(
        50, ge=10, le=100, description="Cells of equal share that a numeric column is cut into."
    )
    psi_bins: int = Field(
        10, ge=2, le=100, description="Bins of the population stability index, joined from cells."
    )
    num_features: int = Field(
        64, ge=8, le=1024, description="Random features of the comparison over all columns."
    )
    min_resamples: int = Field(
        999,
        ge=99,
        description="Windows drawn from the reference to calibrate a threshold; more are drawn "
        "when the number of columns asks for smaller p-values.",
    )
    min_loss_rise: float = Field(
        0.0, ge=0, description="Rises of the mean loss up to this one do not matter [loss units]."
    )

    max_latency_rise: float = Field(
        0.25,
        ge=0,
        description="Rises of the 95th percentile of the seconds an answer takes do not matter up "
        "to this share of it [rate].",
    )

    @model_validator(mode="after")
    def _bins_fit(self) -> Self:
        if self.psi_bins > self.num_cells:
            raise ValueError(
                f"psi_bins are joined from num_cells: at most {self.num_cells}, got {self.psi_bins}"
            )
        return self

    def resamples(self, family: int) -> int:
        """Return how many windows to draw, so that one of ``family`` tests can raise an alarm.

        A p-value from B draws is at least 1 / (B + 1), and Benjamini-Hochberg multiplies the
        smallest by the size of the family: four times what that needs, as a column has up to four
        statistics and each has its own largest draw.

        >>> DriftSettings().resamples(1), DriftSettings().resamples(51)
        (999, 6800)
        """
        return max(self.min_resamples, math.ceil(4 * family / self.alpha))


class PersistenceSettings(Settings):
    """How often drift must be seen before anything is done about it."""

    needed: int = Field(2, ge=1, description="Windows with drift that raise the alarm, k.")
    windows: int = Field(3, ge=1, le=1000, description="Last windows that are counted, n.")

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if self.needed > self.windows:
            raise ValueError(
                f"needed counts among windows: at most {self.windows}, got {self.needed}"
            )
        return self
