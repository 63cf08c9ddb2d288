"""Bins columns into cells and encodes each value as the number of its cell.

All statistics are computed from the number of rows in each cell. So numbers and categories are
treated alike. Units and tails of the distribution have no influence. The cost of resampling does
not depend on the number of rows.

Shape legend: N = rows, G = cells. Code 0 is a missing value (for numbers also an infinite one);
cells are numbered from 1.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.errors import ContractError

Kind = Literal["numeric", "category"]
MISSING = 0
"""Code of a missing value."""

_ROUNDING_ERROR = 2.0**-24
"""Largest relative error of a number that is rounded to single precision. Requests arrive in single
precision, and references may have double precision."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NumericCells:
    """Cells ``(previous edge, edge]``; the two outer cells contain no rows of the reference."""

    edges: NDArray[np.float64]
    """Ascending edges (G - 1,). A frequent value has a separate cell, between an edge just below
    and an edge just above the value. The value rounded to single precision is in the same cell."""

    @property
    def num_cells(self) -> int:
        """Number of cells, G."""
        return self.edges.size + 1

    def encode(self, values: "pd.Series[Any]") -> NDArray[np.uint8]:
        """Return the code of each value (N,)."""
        x_N = _to_float64(values)
        code_N = (np.searchsorted(self.edges, x_N) + 1).astype(np.uint8)
        is_finite_N = np.isfinite(x_N)
        if not is_finite_N.all():
            code_N[~is_finite_N] = MISSING
        return code_N


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CategoryCells:
    """One cell for each frequent category, one for all rare and one for all new categories."""

    categories: tuple[str, ...]
    """All categories of the reference, by descending frequency."""

    num_frequent: int
    """Number of frequent categories; each has a separate cell."""

    @property
    def num_cells(self) -> int:
        """Number of cells, G."""
        return self.num_frequent + 2

    def encode(self, values: "pd.Series[Any]") -> NDArray[np.uint8]:
        """Return the code of each value (N,)."""
        position_N, names = factorize(values)
        reference_position = {name: i for i, name in enumerate(self.categories)}
        codes = [self._code(reference_position.get(name)) for name in names]
        # Missing values have position -1, which selects the last element.
        return np.array([*codes, MISSING], np.uint8)[position_N]

    def count_unseen(self, values: "pd.Series[Any]") -> dict[str, int]:
        """Return the number of rows of each category that is not in the reference."""
        position_N, names = factorize(values)
        reference_names = set(self.categories)
        counts = np.bincount(position_N[position_N >= 0], minlength=len(names))
        return {name: int(counts[i]) for i, name in enumerate(names) if name not in reference_names}

    def _code(self, position: int | None) -> int:
        if position is None:
            return self.num_frequent + 2
        return min(position, self.num_frequent) + 1


Cells = NumericCells | CategoryCells


def column_kind(values: "pd.Series[Any]") -> Kind:
    """Return whether a column is treated as numbers or as categories (text, booleans).

    Raises:
        ContractError: The column has another type, such as a column of times.
    """
    dtype = values.dtype
    types = pd.api.types
    if types.is_bool_dtype(dtype) or isinstance(dtype, pd.CategoricalDtype):
        return "category"
    if types.is_numeric_dtype(dtype) and not types.is_complex_dtype(dtype):
        return "numeric"
    if types.is_string_dtype(dtype) or types.is_object_dtype(dtype):
        return "category"
    raise ContractError(
        f"Drift detection requires numbers or categories, but column '{values.name}' has type "
        f"{dtype}.",
        cause="A column of times always increases, so it would differ from any reference.",
        fix="Exclude the column, or convert it to a number such as the time since the last row.",
    )


def count_filled(values: "pd.Series[Any]") -> int:
    """Return the number of values that are not missing and, for numbers, finite."""
    if column_kind(values) == "numeric":
        return int(np.isfinite(_to_float64(values)).sum())
    return int(values.notna().sum())


def bin_numbers(values: "pd.Series[Any]", num_cells: int) -> NumericCells:
    """Return cells with about equal numbers of rows, or one cell per value for few distinct values.

    Args:
        values: Numbers, at least one of them finite.
        num_cells: Number of cells, without the two cells outside the range.
    """
    x_N = _to_float64(values)
    x_N = np.sort(x_N[np.isfinite(x_N)])
    # The edges are quantiles without interpolation, so each edge is a value of the reference.
    last_positions = (
        np.ceil(np.arange(1, num_cells + 1) / num_cells * x_N.size).astype(np.int64) - 1
    )
    edges = x_N[last_positions]
    distinct_values = x_N[np.concatenate(([True], x_N[1:] != x_N[:-1]))]
    # Frequent values get a separate cell, between an edge just below and an edge just above them.
    is_repeated = edges[1:] == edges[:-1]
    frequent_values = (
        distinct_values if distinct_values.size <= num_cells else edges[1:][is_repeated]
    )
    # The first and the last edge enclose the range of the reference.
    edges_below = _below(np.concatenate((x_N[:1], frequent_values)))
    edges_above = _above(np.concatenate((frequent_values, x_N[-1:])))
    has_separate_edges = np.isin(edges, np.concatenate((x_N[:1], frequent_values, x_N[-1:])))
    other_edges = _above(edges[~has_separate_edges])
    return NumericCells(edges=np.unique(np.concatenate((other_edges, edges_below, edges_above))))


def _below(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each value a number below both the value and its single-precision rounding."""
    lower: NDArray[np.float64] = np.nextafter(values - np.abs(values) * _ROUNDING_ERROR, -np.inf)
    return lower


def _above(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each value a number not below the value or its single-precision rounding."""
    upper: NDArray[np.float64] = values + np.abs(values) * _ROUNDING_ERROR
    return upper


def bin_categories(values: "pd.Series[Any]", num_cells: int) -> CategoryCells:
    """Return cells for the most frequent categories, for rare categories and new categories."""
    position_N, names = factorize(values)
    counts = np.bincount(position_N[position_N >= 0], minlength=len(names))
    order = sorted(range(len(names)), key=lambda i: (-counts[i], names[i]))
    return CategoryCells(
        categories=tuple(names[i] for i in order), num_frequent=min(len(names), num_cells)
    )


def factorize(values: "pd.Series[Any]") -> tuple[NDArray[np.int64], list[str]]:
    """Return the position of each value in a list of categories, -1 if missing, and this list."""
    position_N, distinct_values = pd.factorize(values, use_na_sentinel=True)
    names = [str(value) for value in distinct_values]
    position_of = {name: i for i, name in enumerate(dict.fromkeys(names))}
    # 1 and "1" are the same category, because text files do not distinguish them.
    merged_position = np.array([*(position_of[name] for name in names), -1], np.int64)
    return merged_position[position_N], list(position_of)


def _to_float64(values: "pd.Series[Any]") -> NDArray[np.float64]:
    return values.to_numpy(dtype=np.float64, na_value=np.nan)
