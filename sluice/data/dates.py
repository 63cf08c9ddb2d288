"""Parses dates that are given as texts."""

from typing import Any, Literal

import pandas as pd

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
        texts: Dates as texts.
        date_format: Format for strptime; ISO 8601 by default.
        errors: Whether a text that is not a date raises an error or becomes missing.

    Raises:
        ValueError: A text is not a date, the format is invalid, or only some of the texts have a
            UTC offset.
    """
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
