"""Typical data corruptions, inserted on purpose to measure which expectations detect them.

The corruptions imitate faults of real data sources and feature code: a misplaced decimal point, a
changed unit, swapped columns, a source that repeats rows. None is designed to be easy to detect.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.data.schema import Schema

Values = NDArray[np.float64]
InsertCorruption = Callable[[pd.DataFrame, tuple[str, ...], np.random.Generator], pd.DataFrame]
"""Function that inserts a corruption. It takes a frame, the names of the columns to corrupt and a
random generator, and returns a changed copy of the frame."""

_CORRUPTED_ROW_SHARE = 0.1
"""Share of the rows that a corruption of consecutive rows changes, repeats or drops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruption:
    """One type of corruption, and the function that inserts it."""

    name: str
    inserted_into: Literal["column", "pair", "rows"]
    """What the corruption changes: one column, two columns with the same unit, or whole rows."""

    plant: InsertCorruption


def _cell_corruption(change: Callable[[float], float]) -> InsertCorruption:
    def plant(
        frame: pd.DataFrame, columns: tuple[str, ...], rng: np.random.Generator
    ) -> pd.DataFrame:
        row = int(rng.integers(len(frame)))
        return _with_changed_column(
            frame, columns[0], lambda v: _with_changed_rows(v, slice(row, row + 1), change(v[row]))
        )

    return plant


def _column_corruption(change: Callable[[Values], Values]) -> InsertCorruption:
    def plant(
        frame: pd.DataFrame,
        columns: tuple[str, ...],
        rng: np.random.Generator,  # noqa: ARG001 - nothing to choose
    ) -> pd.DataFrame:
        return _with_changed_column(frame, columns[0], change)

    return plant


def _consecutive_rows_corruption(change: Callable[[Values], Any]) -> InsertCorruption:
    """Return a function that changes consecutive rows of a column; ``change`` gets their values."""

    def plant(
        frame: pd.DataFrame, columns: tuple[str, ...], rng: np.random.Generator
    ) -> pd.DataFrame:
        rows = _random_row_range(len(frame), rng)
        return _with_changed_column(
            frame, columns[0], lambda v: _with_changed_rows(v, rows, change(v[rows]))
        )

    return plant


def _swap_cell(
    frame: pd.DataFrame, columns: tuple[str, ...], rng: np.random.Generator
) -> pd.DataFrame:
    first, second = (frame[name].to_numpy(np.float64) for name in columns)
    row = int(rng.integers(len(frame)))
    swapped_row = slice(row, row + 1)
    swapped = _with_changed_column(
        frame, columns[0], lambda v: _with_changed_rows(v, swapped_row, second[row])
    )
    return _with_changed_column(
        swapped, columns[1], lambda v: _with_changed_rows(v, swapped_row, first[row])
    )


def _swap_columns(
    frame: pd.DataFrame,
    columns: tuple[str, ...],
    rng: np.random.Generator,  # noqa: ARG001 - nothing to choose
) -> pd.DataFrame:
    first, second = columns
    return frame.assign(**{first: frame[second], second: frame[first]})


def _repeat_rows(
    frame: pd.DataFrame,
    columns: tuple[str, ...],  # noqa: ARG001 - whole rows
    rng: np.random.Generator,
) -> pd.DataFrame:
    rows = _random_row_range(len(frame), rng)
    return pd.concat([frame.iloc[: rows.stop], frame.iloc[rows], frame.iloc[rows.stop :]])


def _drop_rows(
    frame: pd.DataFrame,
    columns: tuple[str, ...],  # noqa: ARG001 - whole rows
    rng: np.random.Generator,
) -> pd.DataFrame:
    rows = _random_row_range(len(frame), rng)
    return pd.concat([frame.iloc[: rows.start], frame.iloc[rows.stop :]])


CORRUPTIONS = (
    Corruption(
        name="one cell empty", inserted_into="column", plant=_cell_corruption(lambda _: np.nan)
    ),
    Corruption(
        name="one cell infinite", inserted_into="column", plant=_cell_corruption(lambda _: np.inf)
    ),
    Corruption(
        name="one cell x10", inserted_into="column", plant=_cell_corruption(lambda x: 10 * x)
    ),
    Corruption(
        name="one cell x100", inserted_into="column", plant=_cell_corruption(lambda x: 100 * x)
    ),
    Corruption(
        name="one cell / 100", inserted_into="column", plant=_cell_corruption(lambda x: x / 100)
    ),
    Corruption(name="one cell zero", inserted_into="column", plant=_cell_corruption(lambda _: 0.0)),
    Corruption(
        name="one sign flipped", inserted_into="column", plant=_cell_corruption(lambda x: -x)
    ),
    Corruption(
        name="one cell -999", inserted_into="column", plant=_cell_corruption(lambda _: -999.0)
    ),
    Corruption(
        name="rows of zero",
        inserted_into="column",
        plant=_consecutive_rows_corruption(lambda _: 0.0),
    ),
    Corruption(
        name="rows stale",
        inserted_into="column",
        plant=_consecutive_rows_corruption(lambda v: v[0]),
    ),
    Corruption(
        name="column x100", inserted_into="column", plant=_column_corruption(lambda v: 100 * v)
    ),
    Corruption(
        name="column / 100", inserted_into="column", plant=_column_corruption(lambda v: v / 100)
    ),
    Corruption(
        name="column x1,000,000",
        inserted_into="column",
        plant=_column_corruption(lambda v: 1e6 * v),
    ),
    Corruption(
        name="column's sign flipped", inserted_into="column", plant=_column_corruption(lambda v: -v)
    ),
    Corruption(
        name="column constant",
        inserted_into="column",
        plant=_column_corruption(lambda v: np.full_like(v, v[len(v) // 2])),
    ),
    Corruption(
        name="column shifted by a row",
        inserted_into="column",
        plant=_column_corruption(lambda v: np.roll(v, 1)),
    ),
    Corruption(name="two cells swapped", inserted_into="pair", plant=_swap_cell),
    Corruption(name="two columns swapped", inserted_into="pair", plant=_swap_columns),
    Corruption(name="rows repeated", inserted_into="rows", plant=_repeat_rows),
    Corruption(name="rows missing", inserted_into="rows", plant=_drop_rows),
)


def corruptible_columns(corruption: Corruption, schema: Schema) -> Iterator[tuple[str, ...]]:
    """Yield names of numeric columns, or pairs with the same unit; () for a corruption of rows."""
    numeric_columns = [column for column in schema.columns if column.kind in ("float", "int")]
    match corruption.inserted_into:
        case "rows":
            yield ()
        case "column":
            yield from ((column.name,) for column in numeric_columns)
        case "pair":
            yield from (
                (a.name, b.name)
                for a, b in combinations(numeric_columns, 2)
                if a.unit and a.unit == b.unit
            )


def _with_changed_column(
    frame: pd.DataFrame, column: str, change: Callable[[Values], Values]
) -> pd.DataFrame:
    return frame.assign(**{column: change(frame[column].to_numpy(np.float64, copy=True))})


def _with_changed_rows(values: Values, rows: slice, value: Any) -> Values:
    values[rows] = value  # changes the copy that _with_changed_column made
    return values


def _random_row_range(num_rows: int, rng: np.random.Generator) -> slice:
    length = max(2, round(_CORRUPTED_ROW_SHARE * num_rows))
    start = int(rng.integers(max(1, num_rows - length)))
    return slice(start, min(start + length, num_rows))
