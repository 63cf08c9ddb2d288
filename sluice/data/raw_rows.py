"""Converts an external table to raw rows with the names, numbers and dates of a schema."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from sluice.base.errors import SourceError
from sluice.data.dates import parse_dates
from sluice.data.number_format import plain_number
from sluice.data.schema import Schema
from sluice.data.source_settings import CsvSource, TableSource
from sluice.data.validation import nearest_name

_MAX_SEPARATE_COLUMNS = 100
"""Above this number of converted columns, pandas warns of slow operations on separately stored
columns; a copy stores them together."""


def apply_schema(
    table: pd.DataFrame,
    source: TableSource,
    schema: Schema,
    *,
    origin: str,
    where: Callable[[int], str],
) -> pd.DataFrame:
    """Rename columns, convert the numeric columns of the schema, and set the index.

    Args:
        table: The table as it was read.
        source: Settings with the index column and the columns to rename.
        schema: Schema with the numeric columns and the type of the index.
        origin: The file or query, for the start of a message.
        where: Function that maps a row position to a description of the row, for messages.

    Raises:
        SourceError: A column does not exist, a numeric column contains text, or a date cannot be
            parsed.
    """
    names = [str(name) for name in table.columns]
    for name in (source.index, *source.rename):
        if name is not None and name not in names:
            nearest = nearest_name(name, names)
            hint = f" (nearest: '{nearest}')" if nearest else ""
            raise SourceError(
                f"{origin} has no column '{name}'{hint}. It has: {', '.join(sorted(names))}.",
                cause="'index' and the keys of 'rename' must be column names of the source.",
                fix="Correct 'index' or 'rename' in the source's settings.",
            )
    if source.index is None:
        index: pd.Index = pd.RangeIndex(len(table), name=schema.index_name)
        rows = table.rename(columns=source.rename)
    else:
        index = _make_index(table[source.index], source, schema, origin=origin, where=where)
        rows = table.drop(columns=source.index).rename(columns=source.rename)
    num_columns = Counter(rows.columns.tolist())
    num_converted = 0
    for column in schema.columns:
        if column.kind in ("float", "int") and num_columns[column.name] == 1:
            values = rows[column.name]
            numbers = _to_numbers(values, column.kind, source, origin=origin, where=where)
            if numbers is not values:
                rows[column.name] = numbers
                num_converted += 1
    if num_converted > _MAX_SEPARATE_COLUMNS:
        rows = rows.copy()
    rows.index = index
    return rows


def convert_dates(
    values: "pd.Series[Any]",
    *,
    date_format: str | None = None,
    origin: str,
    where: Callable[[int], str],
) -> "pd.Series[Any]":
    """Return a column as dates; missing values stay missing.

    Dates with a time zone are converted to UTC, like texts with a UTC offset: the dates of a
    request are texts, which have no other time zone.

    Args:
        values: Dates, or texts of dates.
        date_format: Format of texts or Unix times, see ``parse_dates``; ISO 8601 by default.
        origin: The file or query, for the start of a message.
        where: Function that maps a row position to a description of the row, for messages.

    Raises:
        SourceError: A text is not a date, or only some texts have a UTC offset.
    """
    if isinstance(values.dtype, pd.DatetimeTZDtype):
        in_utc: pd.Series[Any] = values.dt.tz_convert("UTC")
        return in_utc
    if values.dtype.kind == "M":
        return values
    try:
        dates = parse_dates(values, date_format=date_format, errors="coerce")
    except ValueError as error:
        raise SourceError(
            f"{origin}: the dates of column '{values.name}' cannot be parsed: {error}.",
            cause="Only some of the dates have a UTC offset, or date_format is invalid.",
            fix="Write all dates with a UTC offset or all without one, or correct date_format.",
        ) from None
    is_invalid = dates.isna() & values.notna()
    _require_dates(is_invalid, values, date_format, origin=origin, where=where)
    return dates


def _require_dates(
    is_invalid: "pd.Series[bool]",
    values: "pd.Series[Any]",
    date_format: str | None,
    *,
    origin: str,
    where: Callable[[int], str],
) -> None:
    """Raise an error that names the first invalid value, if there is one."""
    if is_invalid.any():
        row = int(is_invalid.to_numpy().argmax())
        raise SourceError(
            f"{origin}: column '{values.name}' must contain dates in the format "
            f"{date_format or 'ISO 8601 (2024-12-31)'}, got {values.tolist()[row]!r} at "
            f"{where(row)} ({is_invalid.sum()} such values of {len(values)}).",
            fix="Correct the value; date_format of the source sets the format of the index.",
        )


def row_location(row: int) -> str:
    """Describe a row by its position, for sources without line numbers."""
    return f"row {row}, counted from 0"


def _to_numbers(
    series: "pd.Series[Any]",
    kind: str,
    source: TableSource,
    *,
    origin: str,
    where: Callable[[int], str],
) -> "pd.Series[Any]":
    if series.dtype.kind in "Mmb":
        return series  # validate_schema reports the wrong dtype later
    if series.dtype == np.float64:
        return series
    values = series
    if isinstance(source, CsvSource) and series.dtype.kind == "O":
        # In a file with decimal commas, pandas would read the text 1.234 as 1234 / 1000.
        number_format = (source.decimal, source.thousands)
        if number_format != (".", None):
            values = series.map(lambda value: plain_number(value, *number_format))
    numbers = pd.to_numeric(values, errors="coerce")
    is_invalid = (numbers.isna() & series.notna()).to_numpy()
    if is_invalid.any():
        row = int(is_invalid.argmax())
        raise SourceError(
            f"{origin}: column '{series.name}' must be numeric, got {series.tolist()[row]!r} at "
            f"{where(row)} ({is_invalid.sum()} such values of {len(series)}).",
            cause="The column contains text, a unit, a decimal comma or a thousands separator.",
            fix="Write plain numbers with a decimal point, and leave unknown values empty. For a "
            "CSV file, 'decimal' and 'thousands' set the separators of its numbers.",
        )
    return numbers.astype("float64") if kind == "float" else numbers


def _make_index(
    labels: "pd.Series[Any]",
    source: TableSource,
    schema: Schema,
    *,
    origin: str,
    where: Callable[[int], str],
) -> pd.Index:
    if schema.index_kind == "datetime":
        date_format = source.date_format
        dates = convert_dates(labels, date_format=date_format, origin=origin, where=where)
        if labels.dtype.kind != "M":
            _require_dates(dates.isna(), labels, date_format, origin=origin, where=where)
        labels = dates
    elif schema.index_kind in ("float", "int"):
        labels = _to_numbers(labels, schema.index_kind, source, origin=origin, where=where)
    index: pd.Index = pd.Index(labels, name=schema.index_name or source.index)
    return index
