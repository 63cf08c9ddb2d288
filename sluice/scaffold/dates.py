"""Finds columns of dates."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sluice.data.dates import UNIX_UNITS, parse_dates

_NUM_FIRST_TEXTS = 20
"""A column of texts is searched for dates only if its first texts look like dates."""

_ISO_START = re.compile(r"\d{4}-\d{1,2}(?!\d)|\d{8}(?!\d)")
_TEXT_WITH_DATE = re.compile(r"(?=.*\d)[\w ,./:+-]{5,32}")

_DATE_FORMATS = (
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y"),
    *("%d.%m.%y", "%d/%m/%y", "%m/%d/%y"),
    *("%d %b %Y", "%d-%b-%Y", "%d-%b-%y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y"),
    *("%b %Y", "%B %Y", "%b-%Y", "%b-%y", "%Y %b", "%m/%Y", "%Y/%m"),
)
_TIME_FORMATS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p")

_DIGIT_FORMATS = {8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
"""Formats of dates that are written as one integer, such as 20241231, by number of digits."""

_MONTH_FORMAT = "%Y%m"
_YEARS = (1900, 2100)
"""Integers count as dates only within these years."""

_TIME_NAME = re.compile(r"date|time|month|period|epoch|unix|(?:^|_)ts$", re.IGNORECASE)
"""Matches names of columns whose numbers may be Unix times, or months such as 202412."""

_UNIX_RANGE_S = (315_532_800, 4_102_444_800)
"""Numbers count as Unix times only from 1980 to 2100 [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DateColumn:
    """Column of dates without missing values."""

    dates: "pd.Series[Any]"
    format: str | None
    """Value of ``date_format`` of the source; None for ISO 8601 and for a column of type
    datetime."""

    note: str = ""
    """Remark on an ambiguous format, or on UTC."""


def find_dates(rows: pd.DataFrame) -> Mapping[str, DateColumn]:
    """Return the columns that contain dates in all rows, by name."""
    dates = {name: as_date_column(rows[name]) for name in rows.columns}
    return {str(name): column for name, column in dates.items() if column is not None}


def as_date_column(series: "pd.Series[Any]") -> DateColumn | None:
    """Return a column as dates; None if it has missing values, or values that are not dates.

    A text such as 01/02/2024 is ambiguous. If several formats fit, the first format with which the
    column is sorted is used. If the column is sorted with none of them, the first format is used.
    Formats that begin with the day precede formats that begin with the month.

    Integers with the digits of a date and a time, such as 20241231, are dates. Other numbers are
    dates only if the name of the column says so, see ``_TIME_NAME``: Unix times, and months such as
    202412.
    """
    if series.hasnans or len(series) == 0:
        return None
    if series.dtype.kind == "M":
        return DateColumn(dates=series, format=None)
    if series.dtype.kind in "iuf":
        return _as_number_dates(series)
    if not pd.api.types.is_string_dtype(series.dtype):
        return None
    return _as_text_dates(series.astype("str"))


def _as_text_dates(texts: "pd.Series[Any]") -> DateColumn | None:
    first_texts = texts.head(_NUM_FIRST_TEXTS)
    if not all(_TEXT_WITH_DATE.fullmatch(text.strip()) for text in first_texts):
        return None
    if all(_ISO_START.match(text) for text in first_texts):
        iso_dates = _convert(texts, None)
        if iso_dates is not None:
            is_in_utc = iso_dates.dt.tz is not None
            note = "Times with a UTC offset are read in UTC." if is_in_utc else ""
            return DateColumn(dates=iso_dates, format=None, note=note)
    formats = [date + time for date in _DATE_FORMATS for time in _TIME_FORMATS]
    matches = [
        (date_format, dates)
        for date_format in formats
        if _convert(first_texts, date_format) is not None
        and (dates := _convert(texts, date_format)) is not None
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


def _as_number_dates(numbers: "pd.Series[Any]") -> DateColumn | None:
    low, high = numbers.min(), numbers.max()
    has_time_name = bool(_TIME_NAME.search(str(numbers.name)))
    if numbers.dtype.kind in "iu":
        digits = len(str(low))
        date_format = _DIGIT_FORMATS.get(digits)
        if digits == 6 and has_time_name:
            date_format = _MONTH_FORMAT
        first_digits, last_digits = (str(year) for year in _YEARS)
        if (
            date_format is not None
            and len(str(high)) == digits
            and first_digits <= str(low)[:4] <= str(high)[:4] <= last_digits
            and (dates := _convert(numbers.astype("str"), date_format)) is not None
        ):
            return DateColumn(dates=dates, format=date_format)
    if not has_time_name:
        return None
    first_s, last_s = _UNIX_RANGE_S
    for date_format, unit in UNIX_UNITS.items():
        per_second = pd.Timedelta(1, "s") // pd.Timedelta(1, unit)
        if first_s * per_second <= low <= high <= last_s * per_second:
            dates = parse_dates(numbers, date_format=date_format)
            note = f"The numbers count {unit} since 1970-01-01, and are read in UTC."
            return DateColumn(dates=dates, format=date_format, note=note)
    return None


def _convert(texts: "pd.Series[Any]", date_format: str | None) -> "pd.Series[Any] | None":
    """Return texts as dates; None if a text does not fit the format, or only some have offsets."""
    try:
        dates = parse_dates(texts, date_format=date_format, errors="coerce")
    except ValueError:  # only some of the dates have a UTC offset
        return None
    return None if dates.isna().any() else dates
