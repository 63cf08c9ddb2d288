"""Parses dates that are given as texts or as Unix times."""

from typing import Any, Literal

import pandas as pd

UNIX_UNITS: dict[str, Literal["s", "ms", "us", "ns"]] = {
    "unix_s": "s",
    "unix_ms": "ms",
    "unix_us": "us",
    "unix_ns": "ns",
}
"""Unit of Unix times, by date format."""

_ENDS_WITH_OFFSET = r".*[Tt ]\d{2}.*(?:[Zz]|[+-]\d{2}(?::?\d{2})?)\s*"
"""Pattern of a time of day with a UTC offset at its end. A date alone, 2024-01-31, has none."""


def parse_dates(
    texts: "pd.Series[Any]",
    *,
    date_format: str | None = None,
    errors: Literal["raise", "coerce"] = "raise",
) -> "pd.Series[Any]":
    """Return texts as dates; missing texts stay missing.

    Times with a UTC offset are converted to UTC, because a table can have several offsets: daylight
    saving time changes them twice a year. Times without an offset stay without a time zone.

    Args:
        texts: Dates as texts, or Unix times as texts or numbers.
        date_format: Format for strptime, or a key of ``UNIX_UNITS`` for the time since 1970-01-01
            in UTC; ISO 8601 by default.
        errors: Whether a text that is not a date raises an error or becomes missing.

    Raises:
        ValueError: A text is not a date, the format is invalid, or only some of the texts have a
            UTC offset.
    """
    if date_format in UNIX_UNITS:
        return _from_unix_times(texts, UNIX_UNITS[date_format], errors=errors)
    texts = texts.astype("str")
    in_utc = pd.to_datetime(texts, format=date_format or "ISO8601", errors=errors, utc=True)
    if date_format is not None and "%z" not in date_format:
        return in_utc.dt.tz_localize(None)
    dates = texts[in_utc.notna()]
    has_offset = dates.str.fullmatch(_ENDS_WITH_OFFSET)
    if not has_offset.any():
        return in_utc.dt.tz_localize(None)
    if not has_offset.all():
        raise ValueError(
            f"{dates[has_offset].iloc[0]!r} has a UTC offset, and {dates[~has_offset].iloc[0]!r} "
            "has none"
        )
    return in_utc


def _from_unix_times(
    values: "pd.Series[Any]",
    unit: Literal["s", "ms", "us", "ns"],
    *,
    errors: Literal["raise", "coerce"],
) -> "pd.Series[Any]":
    """Return Unix times as dates in UTC.

    Integers stay integers: as floats, nanoseconds would be rounded to 256 ns.
    """
    numbers = pd.to_numeric(values, errors=errors)
    return pd.to_datetime(numbers, unit=unit, errors=errors, utc=True)
