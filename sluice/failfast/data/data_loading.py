"""Check that enough complete, non-duplicated rows are loaded."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.pluralize import pluralize
from sluice.config.poc_settings import PocSettings
from sluice.data.schema import Schema
from sluice.failfast.data.raw_schema import check_table_schema
from sluice.findings.check_outcome import CheckOutcome

_Mask = NDArray[np.bool_]

_NO_REQUIREMENTS = Schema(columns=(), index_unique=False, index_sorted=False)

_MAX_COPIES = 10
"""Maximum number of equal rows that count as duplicates. More equal rows are assumed to show a
lasting state, such as the standstill of a machine."""

_MIN_COLUMNS_TO_HALVE = 8
"""Minimum number of columns of a table for a test of each half of its columns."""

_MIN_DISTINCT_SHARE = 0.9
"""Minimum share of the distinct rows that each half of the columns must distinguish. If half of the
columns nearly identifies a row, chance does not explain equality in all columns."""

_CELLS_PER_IQR = 2.63
"""Normally distributed values that are rounded to multiples of their interquartile range (IQR)
collide as often as draws from this number of equally likely cells: 2 sqrt(pi) / 1.349. For a
smaller rounding step, the number of cells is higher, in proportion."""


def check_data_loading(raw: pd.DataFrame, schema: Schema, settings: PocSettings) -> CheckOutcome:
    """Count the rows that are complete and not duplicated.

    A row is a duplicate when an earlier row has the same values in all columns (index label
    excluded) and chance does not explain it; ``repeated_rows`` lists the conditions.

    Args:
        raw: Result of ``load_rows``.
        schema: The workload's ``raw_schema``; its non-nullable columns must have no missing values.
        settings: ``min_rows`` and ``max_duplicate_share``.

    Cost:
        0.4 s for 5 float columns x 1,000,000 rows.
    """
    failure = check_table_schema(raw, _NO_REQUIREMENTS, stage="raw", fault="raw schema mismatch")
    if failure is not None:
        return failure
    required_columns = [c.name for c in schema.columns if not c.nullable and c.name in raw.columns]
    is_complete: _Mask = np.asarray(raw[required_columns].notna().to_numpy().all(axis=1))
    is_repeated = repeated_rows(raw)
    num_usable = int((is_complete & ~is_repeated).sum())
    numbers = {
        "rows": len(raw),
        "complete": int(is_complete.sum()),
        "repeated": int(is_repeated.sum()),
        "usable": num_usable,
    }
    if is_repeated.sum() > settings.max_duplicate_share * len(raw):
        row = int(is_repeated.argmax())
        return CheckOutcome(
            outcome="fail",
            summary=f"{is_repeated.sum():,} of {len(raw):,} rows repeat an earlier row in every "
            f"column (at most {settings.max_duplicate_share:.1%} are allowed), first at row {row} "
            f"(label {raw.index[row]}).",
            numbers=numbers,
            fault="duplicate rows",
        )
    if num_usable < settings.min_rows:
        return CheckOutcome(
            outcome="fail",
            summary=f"At least {settings.min_rows:,} rows are required, got {num_usable:,} of "
            f"{len(raw):,} that are complete and not repeated"
            f"{_describe_emptiest_column(raw, required_columns, is_complete)}.",
            numbers=numbers,
            fault="too few rows",
            cause="The source has too few rows, a filter or a join drops rows, or a column is "
            "mostly empty.",
            fix="Load more rows, fill or omit the column with most missing values, or lower "
            "min_rows in the poc settings.",
        )
    return CheckOutcome(
        outcome="pass",
        summary=f"{num_usable:,} of {len(raw):,} rows are complete and not repeated; "
        f"{settings.min_rows:,} are required.",
        numbers=numbers,
    )


def repeated_rows(raw: pd.DataFrame) -> _Mask:
    """Return a mask (N,) of the rows that equal an earlier row and are not explained by chance.

    A row that equals an earlier row counts as a duplicate only under these conditions:

    - At most 10 rows are equal. More equal rows are a lasting state or an empty reading.
    - With a datetime index, the row does not directly follow an equal row, as at a standstill.
    - The table is not coarse. Either the values of the finest float column are so close to each
      other that chance explains at most half of all copies. Or the table has at least 8 columns,
      and each half of its columns distinguishes nine in ten of the distinct rows.

    Assumes:
        The cells can be hashed. In a table with arrays in its cells, no row counts as a duplicate.
    """
    no_duplicates = np.zeros(len(raw), bool)
    column_hashes = _cell_hashes(raw)
    if not column_hashes or len(raw) < 2:
        return no_duplicates
    row_hashes = _combine_hashes(column_hashes)
    is_repeated = pd.Series(row_hashes).duplicated().to_numpy()
    if not is_repeated.any():
        return no_duplicates
    is_first = ~is_repeated
    is_duplicate = is_repeated & (_count_copies(row_hashes) <= _MAX_COPIES)
    if isinstance(raw.index, pd.DatetimeIndex):
        is_duplicate[1:] &= row_hashes[1:] != row_hashes[:-1]
    float_columns = [
        raw.iloc[is_first, i] for i, dtype in enumerate(raw.dtypes) if dtype.kind == "f"
    ]
    num_expected_copies = _expected_copies(float_columns, len(raw))
    if 2 * num_expected_copies <= is_duplicate.sum():
        return is_duplicate
    if _halves_distinguish_rows([hashes[is_first] for hashes in column_hashes]):
        return is_duplicate
    return no_duplicates


def _cell_hashes(raw: pd.DataFrame) -> list[NDArray[np.uint64]]:
    """Return a hash for each cell, by column; an empty list when a column cannot be hashed."""
    try:
        return [_column_hashes(raw.iloc[:, i]) for i in range(raw.shape[1])]
    except TypeError:  # cells that contain arrays or lists
        return []


def _column_hashes(series: "pd.Series[Any]") -> NDArray[np.uint64]:
    # Convert -0.0 to 0.0, which is an equal value with another bit pattern.
    canonical = series + 0.0 if series.dtype.kind == "f" else series
    return np.asarray(pd.util.hash_pandas_object(canonical, index=False), np.uint64)


def _combine_hashes(column_hashes: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    combined = np.zeros(len(column_hashes[0]), np.uint64)
    for hashes in column_hashes:
        combined = combined * np.uint64(0x9E3779B97F4A7C15) + hashes
    return combined


def _count_copies(row_hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    group_ids, _ = pd.factorize(row_hashes)
    return np.bincount(group_ids)[group_ids]


def _expected_copies(float_columns: "list[pd.Series[Any]]", num_rows: int) -> float:
    """Return the number of equal pairs expected by chance among ``num_rows`` values of a column.

    The column is the finest one: the float column with most distinct values. The size of the
    differences is no criterion, because a derived column may have small differences, but never
    more distinct values than its source. A column of equally spaced values, such as a clock or a
    row number, is not random and is used only if all columns are equally spaced. Without a float
    column with two values, the result is infinite.
    """
    columns = [np.unique(series.dropna().to_numpy(np.float64)) for series in float_columns]
    columns = [values[np.isfinite(values)] for values in columns]
    columns = [values for values in columns if values.size > 1]
    random_columns = [values for values in columns if not _is_equally_spaced(values)] or columns
    max_num_distinct = max((values.size for values in random_columns), default=0)
    return max(
        (
            _expected_collisions(values, num_rows)
            for values in random_columns
            if values.size == max_num_distinct
        ),
        default=np.inf,
    )


def _is_equally_spaced(sorted_values: NDArray[np.float64]) -> bool:
    steps = np.diff(sorted_values)
    return bool(steps.max() <= 1.001 * steps.min())


def _expected_collisions(sorted_values: NDArray[np.float64], num_rows: int) -> float:
    """Return n^2 / (2 k), the expected number of equal pairs of n draws from k equal cells.

    The width of a cell is the 0.001 quantile of the differences between neighbouring values.
    The minimum would be too small if a few values differed only by rounding errors.
    """
    step = float(np.quantile(np.diff(sorted_values), 0.001))
    low, high = np.quantile(sorted_values, [0.25, 0.75])
    return float(num_rows**2 * step / (2 * _CELLS_PER_IQR * (high - low)))


def _halves_distinguish_rows(column_hashes: list[NDArray[np.uint64]]) -> bool:
    """Return whether each half of the columns distinguishes 90 % of the distinct rows.

    With fewer than 8 columns, the result is False.

    Args:
        column_hashes: Hashes of the cells of the distinct rows, by column.
    """
    if len(column_hashes) < _MIN_COLUMNS_TO_HALVE:
        return False
    return all(
        np.unique(_combine_hashes(half)).size >= _MIN_DISTINCT_SHARE * len(column_hashes[0])
        for half in (column_hashes[::2], column_hashes[1::2])
    )


def _describe_emptiest_column(
    raw: pd.DataFrame, required_columns: list[str], is_complete: _Mask
) -> str:
    """Return the end of a message that names the column with most missing values, or ""."""
    if is_complete.all():
        return ""
    num_missing = raw[required_columns].isna().sum()
    return f"; '{num_missing.idxmax()}' is empty in {pluralize(int(num_missing.max()), 'row')}"
