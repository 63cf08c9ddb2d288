"""Turn a table as somebody wrote it into rows: names, numbers and dates as a schema declares."""

from collections.abc import Callable
from typing import Any

import pandas as pd

from sluice.base.errors import SourceError
from sluice.data.schema import Schema
from sluice.data.source_settings import CsvSource, TableSource
from sluice.data.validation import nearest_name


def shape_rows(
    table: pd.DataFrame,
    source: TableSource,
    schema: Schema,
    *,
    origin: str,
    where: Callable[[int], str],
) -> pd.DataFrame:
    """Name the columns, turn declared numbers into numbers and set the index.

    Args:
        table: The columns as they were read.
        source: Names the index and the columns to rename.
        schema: Which columns are numbers, and what the index is.
        origin: The file or query, to begin a message with.
        where: Names a row, given its position.

    Raises:
        SourceError: A name does not exist, text stands in a number's column, or a date cannot be
            read.
    """
    names = [str(name) for name in table.columns]
    for name in (source.index, *source.rename):
        if name not in names:
            near = nearest_name(name, names)
            hint = f" (nearest: '{near}')" if near else ""
            raise SourceError(
                f"{origin} has no column '{name}'{hint}. It has: {', '.join(sorted(names))}.",
                cause="'index' and the keys of 'rename' are names as they stand there.",
                fix="Correct 'index' or 'rename' in the source's settings.",
            )
    index = _index(table[source.index], source, schema, origin=origin, where=where)
    rows = table.drop(columns=source.index).rename(columns=source.rename)
    for column in schema.columns:
        if column.kind in ("float", "int") and list(rows.columns).count(column.name) == 1:
            rows[column.name] = _numbers(rows[column.name], column.kind, origin=origin, where=where)
    rows.index = index
    return rows


def row_place(row: int) -> str:
    """Name a row by its position, where rows have no other name."""
    return f"row {row}, counted from 0"


def _numbers(
    series: "pd.Series[Any]", kind: str, *, origin: str, where: Callable[[int], str]
) -> "pd.Series[Any]":
    if series.dtype.kind in "Mmb":
        return series  # validate_schema refuses it with the dtype
    numbers = pd.to_numeric(series, errors="coerce")
    bad = (numbers.isna() & series.notna()).to_numpy()
    if bad.any():
        row = int(bad.argmax())
        raise SourceError(
            f"{origin}: column '{series.name}' must hold numbers, got {series.tolist()[row]!r} at "
            f"{where(row)} ({bad.sum()} such values of {len(series)}).",
            cause="Text, a unit or a thousands separator stands in a number's column.",
            fix="Write plain numbers with a decimal point there; leave an unknown value empty.",
        )
    return numbers.astype("float64") if kind == "float" else numbers


def _index(
    labels: "pd.Series[Any]",
    source: TableSource,
    schema: Schema,
    *,
    origin: str,
    where: Callable[[int], str],
) -> pd.Index:
    if schema.index_kind == "datetime" and labels.dtype.kind != "M":
        layout = source.date_format if isinstance(source, CsvSource) else None
        try:
            dates = pd.to_datetime(
                labels.astype("str"), format=layout or "ISO8601", errors="coerce"
            )
        except ValueError as error:  # several offsets from UTC: pandas refuses, whatever errors=
            raise SourceError(
                f"{origin}: the dates of column '{source.index}' cannot be read: {error}.",
                cause="They carry more than one offset from UTC, or date_format is not a format.",
                fix="Write all of them in one time zone.",
            ) from None
        bad = dates.isna().to_numpy()
        if bad.any():
            row = int(bad.argmax())
            raise SourceError(
                f"{origin}: column '{source.index}' must hold dates as "
                f"{layout or 'ISO 8601 (2024-12-31)'}, got {labels.tolist()[row]!r} at "
                f"{where(row)} ({bad.sum()} such values of {len(labels)}).",
                fix="Correct the value; for a CSV file, date_format can say how dates are written.",
            )
        labels = dates
    index: pd.Index = pd.Index(labels, name=schema.index_name or source.index)
    return index
