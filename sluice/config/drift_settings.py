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
        description="Maximum number of held-out rows in the reference, and maximum number of "
        "requests of a window that are compared with these rows [rows]. Time and memory grow with "
        "the square of this number.",
    )
    min_permutations: int = Field(
        999,
        ge=99,
        le=100_000,
        description="Minimum number of permutations from which a p-value is computed. More "
        "permutations are used if alpha requires smaller p-values.",
    )
    min_discrepancy: float = Field(
        0.0,
        ge=0,
        le=2,
        description="A significant difference counts as drift only if its discrepancy is above "
        "this value [squared maximum mean discrepancy, at most 2].",
    )


class DriftSettings(Settings):
    """Settings of the drift tests, which compare a window of rows with the reference."""

    alpha: float = Field(
        0.03,
        gt=0,
        lt=0.5,
        description="Maximum rate of false alarms per window, over all columns together [rate]. "
        "For strongly dependent rows the actual rate is about a quarter higher.",
    )
    window_rows: int = Field(
        500,
        ge=MIN_WINDOW_ROWS,
        description="Size of a window [rows]. Thresholds for this size are stored with the "
        "reference; thresholds for another size are computed when needed. The first window of a "
        "version may be as small as min_rows.",
    )
    min_rows: int = Field(
        100,
        ge=MIN_WINDOW_ROWS,
        description="Minimum size of the reference, and of a window [rows]. Smaller windows are "
        "not evaluated.",
    )
    min_blocks: int = Field(
        4,
        ge=2,
        description="Minimum number of blocks of dependent rows in a window. A column is not "
        "tested if its blocks are so long that a window has fewer blocks.",
    )
    max_columns: int = Field(
        128,
        ge=1,
        le=10_000,
        description="Maximum number of columns that are compared, separately and jointly "
        "[columns]. Of a wider table, a random sample of columns is compared, and the remaining "
        "columns are reported as omitted. Time and memory grow with the square of this number, "
        "because the number of resamples per column is proportional to the number of columns.",
    )
    num_cells: int = Field(
        50,
        ge=10,
        le=100,
        description="For a numeric column, the number of cells; quantiles of the reference values "
        "separate them. For a categorical column, the maximum number of categories that have a "
        "separate cell.",
    )
    psi_bins: int = Field(
        10,
        ge=2,
        le=100,
        description="Number of bins of the population stability index (PSI). Each bin consists of "
        "whole cells.",
    )
    num_features: int = Field(
        64,
        ge=8,
        le=1024,
        description="Number of random Fourier features with which all columns are compared "
        "jointly.",
    )
    min_resamples: int = Field(
        999,
        ge=99,
        description="Minimum number of windows that are resampled from the reference to calibrate "
        "a threshold. More windows are resampled if the number of columns requires smaller "
        "p-values.",
    )
    min_loss_increase: float = Field(
        0.0,
        ge=0,
        description="A window has drift only if its mean loss increased by significantly more than "
        "this value [loss units].",
    )

    max_latency_increase: float = Field(
        0.25,
        ge=0,
        description="A significant increase of the 95th percentile of the response time counts as "
        "drift only if the relative increase is above this value [rate].",
    )

    embedding: EmbeddingDriftSettings | None = Field(
        EmbeddingDriftSettings(),
        description="Drift of images and texts on the embedding of the network; null disables it.",
    )

    @model_validator(mode="after")
    def _require_enough_cells(self) -> Self:
        if self.psi_bins > self.num_cells:
            raise ValueError(
                f"psi_bins must not exceed num_cells ({self.num_cells}), got {self.psi_bins}"
            )
        return self

    @property
    def column_settings(self) -> "DriftSettings":
        """Settings on which the references of columns depend: all except ``embedding``."""
        return self.model_copy(update={"embedding": None})

    def num_resamples(self, num_tests: int) -> int:
        """Return the number of resampled windows that ``num_tests`` tests require for an alarm.

        A p-value from B resamples is at least 1 / (B + 1). Benjamini-Hochberg multiplies the
        smallest p-value by the number of tests, so B must be about num_tests / alpha. The result is
        four times as large: a column has up to four statistics, each of which may have another most
        extreme resample, and the p-value of the column counts all of these resamples.

        >>> DriftSettings().num_resamples(1), DriftSettings().num_resamples(51)
        (999, 6800)
        """
        return max(self.min_resamples, math.ceil(4 * num_tests / self.alpha))


class AlarmDebounceSettings(Settings):
    """Debouncing of the drift alarm: k of the last n windows must have drift."""

    min_drifted: int = Field(
        2,
        ge=1,
        description="The alarm is raised if at least this number of the last num_windows windows "
        "have drift (k).",
    )
    num_windows: int = Field(
        3,
        ge=1,
        le=1000,
        description="Number of recent windows among which windows with drift are counted (n).",
    )

    @model_validator(mode="after")
    def _require_reachable_alarm(self) -> Self:
        if self.min_drifted > self.num_windows:
            raise ValueError(
                f"min_drifted must not exceed num_windows ({self.num_windows}), "
                f"got {self.min_drifted}"
            )
        return self
