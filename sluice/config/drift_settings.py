"""Settings of drift monitoring."""

import math
from typing import Self

from pydantic import Field, model_validator

from sluice.base.settings import Settings

MIN_WINDOW_ROWS = 30
"""Lower bound of every setting for the size of a window [rows]."""


class EmbeddingDriftSettings(Settings):
    """Settings of the drift test of a network's embedding, for images and texts."""

    max_rows: int = Field(
        500,
        ge=MIN_WINDOW_ROWS,
        le=2_000,
        description="Maximum number of held-out rows in the reference, and of requests in a "
        "window, that are compared. Time and memory grow with the square of this number [rows].",
    )
    min_permutations: int = Field(
        999,
        ge=99,
        le=100_000,
        description="Minimum number of permutations for a p-value; more if alpha requires smaller "
        "p-values.",
    )
    min_discrepancy: float = Field(
        0.0,
        ge=0,
        le=2,
        description="Significant discrepancies up to this are ignored [squared maximum mean "
        "discrepancy, at most 2].",
    )


class DriftSettings(Settings):
    """Settings of the drift tests, which compare a window of rows with the reference."""

    alpha: float = Field(
        0.03,
        gt=0,
        lt=0.5,
        description="False alarm rate per window over all columns [rate]; exceeded by about a "
        "quarter for strongly dependent rows.",
    )
    window_rows: int = Field(
        500,
        ge=MIN_WINDOW_ROWS,
        description="Window size: thresholds for this size are stored with the reference, "
        "thresholds for another size are computed when needed [rows].",
    )
    min_rows: int = Field(
        100, ge=MIN_WINDOW_ROWS, description="Minimum size of a window to be evaluated [rows]."
    )
    min_blocks: int = Field(
        4,
        ge=2,
        description="Minimum number of blocks of dependent rows in a window for a decision about "
        "a column.",
    )
    max_columns: int = Field(
        128,
        ge=1,
        le=10_000,
        description="Maximum number of columns that are compared, separately and jointly. If a "
        "table is wider, a random sample of its columns is compared, and the others are reported "
        "as omitted. Time "
        "and memory grow quadratically, because the number of resamples per column is "
        "proportional to the number of columns [columns].",
    )
    num_cells: int = Field(
        50, ge=10, le=100, description="Number of quantile cells of a numeric column."
    )
    psi_bins: int = Field(
        10,
        ge=2,
        le=100,
        description="Number of bins of the population stability index, merged from cells.",
    )
    num_features: int = Field(
        64, ge=8, le=1024, description="Number of random features of the joint comparison."
    )
    min_resamples: int = Field(
        999,
        ge=99,
        description="Minimum number of windows resampled from the reference to calibrate a "
        "threshold; more if the number of columns requires smaller p-values.",
    )
    min_loss_increase: float = Field(
        0.0, ge=0, description="Increases of the mean loss up to this are ignored [loss units]."
    )

    max_latency_increase: float = Field(
        0.25,
        ge=0,
        description="Relative increases of the 95th percentile of the response time up to this "
        "are ignored [rate].",
    )

    embedding: EmbeddingDriftSettings | None = Field(
        EmbeddingDriftSettings(),
        description="Drift of images and texts on the embedding of the network; null disables it.",
    )

    @model_validator(mode="after")
    def _bins_fit(self) -> Self:
        if self.psi_bins > self.num_cells:
            raise ValueError(
                f"psi_bins must not exceed num_cells ({self.num_cells}), got {self.psi_bins}"
            )
        return self

    @property
    def column_settings(self) -> "DriftSettings":
        """Settings without those of the embedding. References of columns depend only on these."""
        return self.model_copy(update={"embedding": None})

    def num_resamples(self, num_tests: int) -> int:
        """Return the number of resampled windows with which one of ``num_tests`` tests can alarm.

        A p-value from B resamples is at least 1 / (B + 1), and Benjamini-Hochberg multiplies the
        smallest by the number of tests, so B must be about num_tests / alpha. The result is four
        times as large, because a column has up to four statistics, each with its own largest
        resample.

        >>> DriftSettings().num_resamples(1), DriftSettings().num_resamples(51)
        (999, 6800)
        """
        return max(self.min_resamples, math.ceil(4 * num_tests / self.alpha))


class AlarmDebounceSettings(Settings):
    """Debouncing of the drift alarm: k of the last n windows must have drift."""

    min_drifted: int = Field(
        2, ge=1, description="Number of windows with drift that raises the alarm (k)."
    )
    num_windows: int = Field(
        3, ge=1, le=1000, description="Number of recent windows that are counted (n)."
    )

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if self.min_drifted > self.num_windows:
            raise ValueError(
                f"min_drifted must not exceed num_windows ({self.num_windows}), "
                f"got {self.min_drifted}"
            )
        return self
