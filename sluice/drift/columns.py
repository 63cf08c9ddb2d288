"""Reference of one column, and the distances of windows from it.

A code is the number of the cell that contains a value (see ``drift.binning``); 0 means a missing
value.

Shape legend: N = rows, G = cells, C = categories, K = stored blocks, W = windows (many resampled
windows, or one window).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtri

from sluice.config.drift_settings import DriftSettings
from sluice.drift.binning import (
    Cells,
    Kind,
    NumericCells,
    bin_categories,
    bin_numbers,
    column_kind,
    factorize,
)
from sluice.drift.dependence import Dependence, block_counts, measure_dependence
from sluice.drift.distances import (
    chi_square,
    kolmogorov_smirnov,
    population_stability,
    wasserstein,
)

StatisticName = Literal["psi", "ks", "wasserstein", "chi_square", "missing"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnReference:
    """Reference of one column: its cells with their counts, and blocks for resampling."""

    name: str
    cells: Cells
    count_G: NDArray[np.int64]
    """Number of rows of each code (1 + G,), missing values first."""

    position_G: NDArray[np.float64]
    """Mean value of each cell in standard deviations (G,); empty for categories."""

    dependence: Dependence
    block_KG: NDArray[np.uint16]
    """Number of rows by stored block and code, missing values first (K, 1 + G)."""

    first_C: NDArray[np.int64]
    """First row of each category (C,), in the order of the categories; empty for numbers."""

    last_C: NDArray[np.int64]
    """Last row of each category (C,)."""

    size_C: NDArray[np.int64]
    """Number of rows of each category (C,)."""

    @property
    def kind(self) -> Kind:
        """Whether the column contains numbers or categories."""
        return "numeric" if isinstance(self.cells, NumericCells) else "category"

    @property
    def num_rows(self) -> int:
        """Number of rows of the reference, missing values included."""
        return int(self.count_G.sum())

    @property
    def missing_rate(self) -> float:
        """Rate of missing values."""
        return float(self.count_G[0] / self.count_G.sum())

    @property
    def share_G(self) -> NDArray[np.float64]:
        """Share of each cell among the non-missing values (G,)."""
        share: NDArray[np.float64] = self.count_G[1:] / self.count_G[1:].sum()
        return share

    @property
    def statistics(self) -> tuple[StatisticName, ...]:
        """Names of the distances for this kind of column."""
        if self.kind == "numeric":
            return ("psi", "ks", "wasserstein", "missing")
        return ("psi", "chi_square", "missing")

    def distances(
        self,
        share_WG: NDArray[np.float64],
        missing_W: NDArray[np.float64],
        settings: DriftSettings,
        num_rows: int,
    ) -> NDArray[np.float64]:
        """Return the distances of windows (W, statistics), in the order of ``statistics``.

        Args:
            share_WG: Share of each cell among the non-missing values.
            missing_W: Rate of missing values.
            settings: Drift settings with the number of PSI bins.
            num_rows: Rows of a window [rows].
        """
        share_G = self.share_G
        bins_G = psi_bins(share_G, settings.psi_bins, is_ordered=self.kind == "numeric")
        functions: dict[StatisticName, Callable[[], NDArray[np.float64]]] = {
            "psi": lambda: population_stability(share_WG, share_G, bins_G, num_rows),
            "ks": lambda: kolmogorov_smirnov(share_WG, share_G),
            "wasserstein": lambda: wasserstein(share_WG, share_G, self.position_G),
            "chi_square": lambda: chi_square(share_WG, share_G, num_rows),
            "missing": lambda: np.abs(missing_W - self.missing_rate),
        }
        return np.stack([functions[name]() for name in self.statistics], axis=-1)

    def max_new_category_share(self, num_rows: int) -> float:
        """Return the largest share of rows with new categories that is normal for a window.

        The reference is divided into windows of ``num_rows``. A category counts as new in the
        window of its first row if its last row is less than ``num_rows`` later. The result is 0 if
        all categories recur.
        """
        span_C = self.last_C - self.first_C
        is_exclusive_C = span_C < num_rows
        if not is_exclusive_C.any():
            return 0.0
        rows = np.bincount(
            self.first_C[is_exclusive_C] // num_rows, weights=self.size_C[is_exclusive_C]
        )
        return float(min(1.0, rows.max() / min(num_rows, self.num_rows)))


def reference_column(
    values: "pd.Series[Any]", settings: DriftSettings, per_test_alpha: float
) -> ColumnReference:
    """Return the reference of a column that has at least one value.

    Args:
        values: Values in time order.
        settings: Drift settings with the number of cells.
        per_test_alpha: P-value at which a single test raises an alarm.

    Raises:
        ContractError: The column contains neither numbers nor categories.
    """
    kind = column_kind(values)
    cells: Cells = (
        bin_numbers(values, settings.num_cells)
        if kind == "numeric"
        else bin_categories(values, settings.num_cells)
    )
    code_N = cells.encode(values)
    count_G = np.bincount(code_N, minlength=cells.num_cells + 1)
    dependence = measure_dependence(_dependence_series(code_N, count_G, kind), per_test_alpha)
    first_C, last_C, size_C = _category_spans(values, cells)
    return ColumnReference(
        name=str(values.name),
        cells=cells,
        count_G=count_G,
        position_G=_cell_positions(values, code_N, count_G) if kind == "numeric" else np.empty(0),
        dependence=dependence,
        block_KG=block_counts(code_N, cells.num_cells, dependence.block_length),
        first_C=first_C,
        last_C=last_C,
        size_C=size_C,
    )


def psi_bins(share_G: NDArray[np.float64], max_bins: int, *, is_ordered: bool) -> NDArray[np.int64]:
    """Return the PSI bin of each cell (G,); every bin contains rows of the reference.

    Args:
        share_G: Shares of the cells.
        max_bins: Maximum number of bins.
        is_ordered: Whether neighbouring cells are merged. Otherwise the largest cells have
            separate bins, and the last bin contains the other cells.
    """
    if not is_ordered:
        order_G = np.argsort(-share_G, kind="stable")
        bin_G = np.empty(share_G.size, np.int64)
        last_bin = min(max_bins, int((share_G > 0).sum())) - 1
        bin_G[order_G] = np.minimum(np.arange(share_G.size), last_bin)
        return bin_G
    middle_G = np.cumsum(share_G) - share_G / 2
    equal_bin_G = np.minimum((middle_G * max_bins).astype(np.int64), max_bins - 1)
    filled_bins = np.unique(equal_bin_G[share_G > 0])
    merged_bin_G: NDArray[np.int64] = np.minimum(
        np.searchsorted(filled_bins, equal_bin_G), filled_bins.size - 1
    )
    return merged_bin_G


def normal_scores(column: ColumnReference) -> NDArray[np.float64]:
    """Return the normal score (rank-based inverse normal transform) of each code (1 + G,).

    A missing value has score 0. Values outside the reference's range have the score of
    the quantile 0.5 / N or 1 - 0.5 / N.
    """
    share_G, half_row = column.share_G, 0.5 / column.num_rows
    middle_G = np.clip(np.cumsum(share_G) - share_G / 2, half_row, 1 - half_row)
    return np.concatenate(([0.0], ndtri(middle_G)))


def _dependence_series(
    code_N: NDArray[np.uint8], count_G: NDArray[np.int64], kind: Kind
) -> list[NDArray[np.float64]]:
    """Return the series on which the serial dependence is measured, with unit variance.

    For numbers: ranks, and distances of the ranks from the median. For categories: a 0/1 series
    for each of the most frequent categories. For both: a 0/1 series for missing values.
    """
    series = []
    if kind == "numeric":
        share_G = count_G[1:] / count_G[1:].sum()
        rank_G = np.concatenate(([0.5], np.cumsum(share_G) - share_G / 2)) - 0.5
        series = [rank_G[code_N], np.abs(rank_G)[code_N]]
    else:
        frequent_codes = 1 + np.argsort(-count_G[1:], kind="stable")[:_NUM_CATEGORY_SERIES]
        series = [(code_N == code).astype(np.float64) for code in frequent_codes]
    series.append((code_N == 0).astype(np.float64))
    scaled_series = [x_N / x_N.std() for x_N in series if x_N.std() > 0]
    return scaled_series or [np.zeros(code_N.size)]


_NUM_CATEGORY_SERIES = 4
"""Number of the most frequent categories whose serial dependence is measured."""


def _cell_positions(
    values: "pd.Series[Any]", code_N: NDArray[np.uint8], count_G: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the mean of each cell in standard deviations.

    The outer cells, which have no rows of the reference, use minimum and maximum. The positions of
    a constant column are 0, so its Wasserstein distance is always 0.
    """
    x_N = values.to_numpy(dtype=np.float64, na_value=np.nan)
    is_present_N = code_N > 0
    x_N, code_N = x_N[is_present_N], code_N[is_present_N]
    std = float(x_N.std())
    if not std > 0:
        return np.zeros(count_G.size - 1)
    total_G = np.bincount(code_N, weights=x_N, minlength=count_G.size)[1:]
    is_filled_G = count_G[1:] > 0
    mean = total_G[is_filled_G] / count_G[1:][is_filled_G]
    # The position of an empty cell between filled cells is interpolated from its neighbours.
    positions = np.arange(is_filled_G.size)
    position_G = np.interp(positions, positions[is_filled_G], mean)
    position_G[0], position_G[-1] = x_N.min(), x_N.max()
    return np.maximum.accumulate(position_G) / std


def _category_spans(
    values: "pd.Series[Any]", cells: Cells
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the first row, last row and number of rows of each category."""
    if isinstance(cells, NumericCells):
        empty = np.empty(0, np.int64)
        return empty, empty, empty
    position_N, names = factorize(values)
    row_N = np.flatnonzero(position_N >= 0)
    rows = pd.Series(row_N).groupby(position_N[row_N])
    table = pd.DataFrame({"first": rows.min(), "last": rows.max(), "size": rows.size()})
    table = table.set_axis([names[i] for i in table.index]).loc[list(cells.categories)]
    return (
        table["first"].to_numpy(np.int64),
        table["last"].to_numpy(np.int64),
        table["size"].to_numpy(np.int64),
    )
