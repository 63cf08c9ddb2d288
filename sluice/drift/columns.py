"""What a reference keeps of one column, and the distances of a window from it.

Shape legend: N = rows, G = cells, K = kept blocks, W = windows (drawn ones, or the one judged).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtri

from sluice.config.drift_settings import DriftSettings
from sluice.drift.cells import (
    Cells,
    Kind,
    NumericCells,
    cut_categories,
    cut_numbers,
    factorize,
    kind_of,
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
    """One column of the reference: its cells, how full they are, and blocks to draw from."""

    name: str
    cells: Cells
    count_G: NDArray[np.int64]
    """Rows of each code, missing values first (1 + G,)."""

    at_G: NDArray[np.float64]
    """Mean value of each cell in units of the standard deviation; empty for categories."""

    dependence: Dependence
    block_KG: NDArray[np.uint16]
    """Rows of each kept block in each cell, missing values first (K, 1 + G)."""

    first_G: NDArray[np.int64]
    """First row of each category, in the order of the categories; empty for numbers."""

    last_G: NDArray[np.int64]
    size_G: NDArray[np.int64]
    """Rows of each category."""

    @property
    def kind(self) -> Kind:
        """How the column is read."""
        return "numeric" if isinstance(self.cells, NumericCells) else "category"

    @property
    def num_rows(self) -> int:
        """Rows of the reference, missing values included."""
        return int(self.count_G.sum())

    @property
    def missing_rate(self) -> float:
        """Share of missing values."""
        return float(self.count_G[0] / self.count_G.sum())

    @property
    def share_G(self) -> NDArray[np.float64]:
        """Share of each cell among the values that are there (G,)."""
        share: NDArray[np.float64] = self.count_G[1:] / self.count_G[1:].sum()
        return share

    @property
    def statistics(self) -> tuple[StatisticName, ...]:
        """The distances that this kind of column has."""
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
            share_WG: Share of each cell among the values that are there.
            missing_W: Share of missing values.
            settings: Gives the number of bins.
            num_rows: Rows of a window [rows].
        """
        share_G = self.share_G
        bins_G = bins(share_G, settings.psi_bins, is_ordered=self.kind == "numeric")
        of: dict[StatisticName, Callable[[], NDArray[np.float64]]] = {
            "psi": lambda: population_stability(share_WG, share_G, bins_G, num_rows),
            "ks": lambda: kolmogorov_smirnov(share_WG, share_G),
            "wasserstein": lambda: wasserstein(share_WG, share_G, self.at_G),
            "chi_square": lambda: chi_square(share_WG, share_G, num_rows),
            "missing": lambda: np.abs(missing_W - self.missing_rate),
        }
        return np.stack([of[name]() for name in self.statistics], axis=-1)

    def most_exclusive(self, num_rows: int) -> float:
        """Return the largest share of rows in categories that no row outside the stretch has.

        Over the stretches of ``num_rows`` that the reference is made of: what new categories are
        normal here. 0 where every category is common.
        """
        span_G = self.last_G - self.first_G
        own_G = span_G < num_rows
        if not own_G.any():
            return 0.0
        rows = np.bincount(self.first_G[own_G] // num_rows, weights=self.size_G[own_G])
        return float(min(1.0, rows.max() / min(num_rows, self.num_rows)))


def reference_column(
    values: "pd.Series[Any]", settings: DriftSettings, tail: float
) -> ColumnReference:
    """Return what the reference keeps of a column that has at least one value.

    Args:
        values: In time order.
        settings: Gives the number of cells.
        tail: The p-value at which one column alone raises the alarm.

    Raises:
        ContractError: The column holds neither numbers nor categories.
    """
    kind = kind_of(values)
    cells: Cells = (
        cut_numbers(values, settings.num_cells)
        if kind == "numeric"
        else cut_categories(values, settings.num_cells)
    )
    code_N = cells.encode(values)
    count_G = np.bincount(code_N, minlength=cells.num_cells + 1)
    dependence = measure_dependence(_series(code_N, count_G, kind), tail)
    first_G, last_G, size_G = _spans(values, cells)
    return ColumnReference(
        name=str(values.name),
        cells=cells,
        count_G=count_G,
        at_G=_positions(values, code_N, count_G) if kind == "numeric" else np.empty(0),
        dependence=dependence,
        block_KG=block_counts(code_N, cells.num_cells, dependence.block_length),
        first_G=first_G,
        last_G=last_G,
        size_G=size_G,
    )


def bins(share_G: NDArray[np.float64], most: int, *, is_ordered: bool) -> NDArray[np.int64]:
    """Return the bin of each cell (G,): each holds some of the reference, an empty cell joins one.

    Args:
        share_G: Shares of the cells.
        most: Largest number of bins.
        is_ordered: Neighbouring cells are joined; else each of the fullest keeps its own, and the
            last bin holds the rest.
    """
    if not is_ordered:
        fullest = np.argsort(-share_G, kind="stable")
        bin_G = np.empty(share_G.size, np.int64)
        own = min(most, int((share_G > 0).sum())) - 1
        bin_G[fullest] = np.minimum(np.arange(share_G.size), own)
        return bin_G
    middle_G = np.cumsum(share_G) - share_G / 2
    wanted_G = np.minimum((middle_G * most).astype(np.int64), most - 1)
    filled = np.unique(wanted_G[share_G > 0])
    joined: NDArray[np.int64] = np.minimum(np.searchsorted(filled, wanted_G), filled.size - 1)
    return joined


def scores(column: ColumnReference) -> NDArray[np.float64]:
    """Return the normal score of each code (1 + G,): cells spread as a standard normal would be.

    A missing value is in the middle; outside the reference's range lies half a row further out
    than its ends.
    """
    share_G, half = column.share_G, 0.5 / column.num_rows
    middle_G = np.clip(np.cumsum(share_G) - share_G / 2, half, 1 - half)
    return np.concatenate(([0.0], ndtri(middle_G)))


def _series(
    code_N: NDArray[np.uint8], count_G: NDArray[np.int64], kind: Kind
) -> list[NDArray[np.float64]]:
    """Return what the dependence is measured on, each of unit variance.

    Numbers: ranks, and how far from the middle they lie. Categories: one 0/1 series for each of
    the most frequent, and for missing values in either.
    """
    found = []
    if kind == "numeric":
        share_G = count_G[1:] / count_G[1:].sum()
        rank_G = np.concatenate(([0.5], np.cumsum(share_G) - share_G / 2)) - 0.5
        found = [rank_G[code_N], np.abs(rank_G)[code_N]]
    else:
        fullest = 1 + np.argsort(-count_G[1:], kind="stable")[:_CATEGORY_SERIES]
        found = [(code_N == code).astype(np.float64) for code in fullest]
    found.append((code_N == 0).astype(np.float64))
    varied = [x_N / x_N.std() for x_N in found if x_N.std() > 0]
    return varied or [np.zeros(code_N.size)]


_CATEGORY_SERIES = 4


def _positions(
    values: "pd.Series[Any]", code_N: NDArray[np.uint8], count_G: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the mean of each cell over the standard deviation; the ends stand for what is outside.

    A constant column has no spread: its positions are all 0, and so is every such distance.
    """
    x_N = values.to_numpy(dtype=np.float64, na_value=np.nan)
    there_N = code_N > 0
    x_N, code_N = x_N[there_N], code_N[there_N]
    spread = float(x_N.std())
    if not spread > 0:
        return np.zeros(count_G.size - 1)
    total_G = np.bincount(code_N, weights=x_N, minlength=count_G.size)[1:]
    filled_G = count_G[1:] > 0
    mean = total_G[filled_G] / count_G[1:][filled_G]
    # An empty cell lies between its neighbours, or is one of the two outside the range.
    place = np.arange(filled_G.size)
    at_G = np.interp(place, place[filled_G], mean)
    at_G[0], at_G[-1] = x_N.min(), x_N.max()
    return np.maximum.accumulate(at_G) / spread


def _spans(
    values: "pd.Series[Any]", cells: Cells
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return first row, last row and number of rows of each category, in their order."""
    if isinstance(cells, NumericCells):
        none = np.empty(0, np.int64)
        return none, none, none
    place_N, named = factorize(values)
    row_N = np.flatnonzero(place_N >= 0)
    rows = pd.Series(row_N).groupby(place_N[row_N])
    table = pd.DataFrame({"first": rows.min(), "last": rows.max(), "size": rows.size()})
    table = table.set_axis([named[at] for at in table.index]).loc[list(cells.categories)]
    return (
        table["first"].to_numpy(np.int64),
        table["last"].to_numpy(np.int64),
        table["size"].to_numpy(np.int64),
    )
