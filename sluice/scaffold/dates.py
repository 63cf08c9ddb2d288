"""Finds columns of dates, and the column that orders rows in time."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sluice.data.dates import parse_dates

_DATE_START = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}")
_DATE_FORMATS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y")
_TIME_FORMATS = ("", " %H:%M", " %H:%M:%S")
_BIRTH_NAME = re.compile(r"birth|dob|born", re.IGNORECASE)

MIN_DATES = 60
"""Rows are ordered by a column of dates only if it has at least this number of distinct dates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DateColumn:
    """Column of dates without missing values."""

    dates: "pd.Series[Any]"
    format: str | None
    """Format of the texts for strptime; None for ISO 8601 and for a column of type datetime."""

    note: str = ""
    """Remark on an ambiguous format, or on UTC offsets."""


def find_dates(rows: pd.DataFrame) -> Mapping[str, DateColumn]:
    """Return the columns that contain dates in all rows, by name."""
    dates = {name: as_date_column(rows[name]) for name in rows.columns}
    return {str(name): column for name, column in dates.items() if column is not None}


def as_date_column(series: "pd.Series[Any]") -> DateColumn | None:
    """Return a column as dates; None if it has missing values, or values that are not dates.

    A text such as 01/02/2024 is ambiguous. If several formats fit, the first format with which the
    column is sorted is used. If the column is sorted with none of them, the first format is used.
    Formats that begin with the day precede formats that begin with the month.
    """
    if series.hasnans:
        return None
    if series.dtype.kind == "M":
        return DateColumn(dates=series, format=None)
    if not pd.api.types.is_string_dtype(series.dtype) or len(series) == 0:
        return None
    texts = series.astype("str")
    if not all(_DATE_START.match(text) for text in texts.head(20)):
        return None
    iso_dates = _convert(texts, None)
    if iso_dates is not None:
        note = "Times with a UTC offset are read in UTC." if iso_dates.dt.tz is not None else ""
        return DateColumn(dates=iso_dates, format=None, note=note)
    formats = [date + time for date in _DATE_FORMATS for time in _TIME_FORMATS]
    matches = [
        (date_format, dates)
        for date_format in formats
        if (dates := _convert(texts, date_format)) is not None
    ]
    if not matches:
        return None
    sorted_matches = [
        (date_format, dates) for date_format, dates in matches if dates.is_monotonic_increasing
    ]
    best_format, dates = (sorted_matches or matches)[0]
    note = ""
    if len(matches) > 1:
        other_formats = ", ".join(
            date_format for date_format, _ in matches if date_format != best_format
        )
        note = f"The dates also fit {other_formats}; {best_format} was chosen."
    return DateColumn(dates=dates, format=best_format, note=note)


def choose_time_column(columns: Mapping[str, DateColumn]) -> str | None:
    """Return the column that orders rows in time: the first sorted column, or the first column.

    Columns with fewer than ``MIN_DATES`` distinct dates, and dates of birth, are not considered.
    The result is None if no other column exists.
    """
    usable_columns = {
        name: column
        for name, column in columns.items()
        if column.dates.nunique() >= MIN_DATES and not _BIRTH_NAME.search(name)
    }
    sorted_names = [
        name for name, column in usable_columns.items() if column.dates.is_monotonic_increasing
    ]
    return next(iter([*sorted_names, *usable_columns]), None)


def _convert(texts: "pd.Series[Any]", date_format: str | None) -> "pd.Series[Any] | None":
    """Return texts as dates; None if a text does not fit the format, or only some have offsets."""
    try:
        dates = parse_dates(texts, date_format=date_format, errors="coerce")
    except ValueError:  # only some of the dates have a UTC offset
        return None
    return None if dates.isna().any() else dates
