"""How a column is cut into cells, and which cell each of its values falls into.

Everything after this sees counts of cells, so numbers and categories, any unit and any tail are
one thing, and a million rows are as easily resampled as a hundred.

Shape legend: N = rows, G = cells. Code 0 is a missing value (for numbers also an infinite one);
cells count from 1.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.errors import ContractError

Kind = Literal["numeric", "category"]
MISSING = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NumericCells:
    """Cells ``(edge before, edge]``; the first and the last lie outside the reference's range."""

    edges: NDArray[np.float64]
    """Rising (G - 1,). A value that many rows share has an edge just below it: its own cell."""

    @property
    def num_cells(self) -> int:
        """G."""
        return self.edges.size + 1

    def encode(self, values: "pd.Series[Any]") -> NDArray[np.uint8]:
        """Return the code of each value (N,)."""
        x_N = _floats(values)
        code_N = (np.searchsorted(self.edges, x_N) + 1).astype(np.uint8)
        finite_N = np.isfinite(x_N)
        if not finite_N.all():
            code_N[~finite_N] = MISSING
        return code_N


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CategoryCells:
    """A cell for each frequent category, one for the rare ones, one for those never seen."""

    categories: tuple[str, ...]
    """All that the reference holds, the most frequent first."""

    num_own: int
    """So many of them have a cell of their own."""

    @property
    def num_cells(self) -> int:
        """G."""
        return self.num_own + 2

    def encode(self, values: "pd.Series[Any]") -> NDArray[np.uint8]:
        """Return the code of each value (N,)."""
        place_N, named = factorize(values)
        known = {name: at for at, name in enumerate(self.categories)}
        code_of = [self._code(known.get(name)) for name in named]
        return np.array([*code_of, MISSING], np.uint8)[place_N]  # a missing value has place -1

    def unseen(self, values: "pd.Series[Any]") -> dict[str, int]:
        """Return the categories that the reference does not hold, with their rows."""
        place_N, named = factorize(values)
        known = set(self.categories)
        count = np.bincount(place_N[place_N >= 0], minlength=len(named))
        return {name: int(count[at]) for at, name in enumerate(named) if name not in known}

    def _code(self, place: int | None) -> int:
        if place is None:
            return self.num_own + 2
        return min(place, self.num_own) + 1


Cells = NumericCells | CategoryCells


def kind_of(values: "pd.Series[Any]") -> Kind:
    """Return how a column is read: as numbers, or as categories (text, booleans).

    Raises:
        ContractError: It is neither, such as a column of times.
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
        f"Column '{values.name}' must hold numbers or categories to be watched for drift, got "
        f"{dtype}.",
        cause="A time moves on by itself, so it would differ from any reference.",
        fix="Leave the column out, or turn it into a number such as the time since the last row.",
    )


def num_filled(values: "pd.Series[Any]") -> int:
    """Return how many values are there: not missing, and if numbers, finite."""
    if kind_of(values) == "numeric":
        return int(np.isfinite(_floats(values)).sum())
    return int(values.notna().sum())


def cut_numbers(values: "pd.Series[Any]", num_cells: int) -> NumericCells:
    """Return cells of about equal share; every value has its own when there are few of them.

    Args:
        values: At least one of them finite.
        num_cells: How many, besides the two outside the range.
    """
    x_N = _floats(values)
    x_N = np.sort(x_N[np.isfinite(x_N)])
    # Inverse of the empirical distribution: an edge is a value of the reference.
    place = np.ceil(np.arange(1, num_cells + 1) / num_cells * x_N.size).astype(np.int64) - 1
    edges = x_N[place]
    distinct = x_N[np.concatenate(([True], x_N[1:] != x_N[:-1]))]
    shared = distinct if distinct.size <= num_cells else edges[1:][edges[1:] == edges[:-1]]
    below = np.nextafter(np.concatenate((x_N[:1], shared)), -np.inf)
    return NumericCells(edges=np.unique(np.concatenate((edges, shared, below))))


def cut_categories(values: "pd.Series[Any]", num_cells: int) -> CategoryCells:
    """Return cells for the most frequent categories, and the two that all columns have."""
    place_N, named = factorize(values)
    count = np.bincount(place_N[place_N >= 0], minlength=len(named))
    order = sorted(range(len(named)), key=lambda at: (-count[at], named[at]))
    return CategoryCells(
        categories=tuple(named[at] for at in order), num_own=min(len(named), num_cells)
    )


def factorize(values: "pd.Series[Any]") -> tuple[NDArray[np.int64], list[str]]:
    """Return the place of each value (N,) in the list of categories; -1 where it is missing."""
    place_N, distinct = pd.factorize(values, use_na_sentinel=True)
    names = [str(value) for value in distinct]
    place_of = {name: at for at, name in enumerate(dict.fromkeys(names))}
    # 1 and "1" are one category: a file does not tell them apart.
    merged = np.array([*(place_of[name] for name in names), -1], np.int64)
    return merged[place_N], list(place_of)


def _floats(values: "pd.Series[Any]") -> NDArray[np.float64]:
    return values.to_numpy(dtype=np.float64, na_value=np.nan)
