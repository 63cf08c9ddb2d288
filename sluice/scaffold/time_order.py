"""Finds the column that orders the rows of a table in time."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from sluice.data.schema import ColumnKind
from sluice.scaffold.dates import DateColumn

MIN_TIMES = 60
"""Rows are ordered by a column only if it has at least this number of distinct times."""

_BIRTH_NAME = re.compile(r"birth|dob|born", re.IGNORECASE)

_NUMBER_NAME = re.compile(
    "t|ts|tick|step|time|time_?step|timestamp|epoch|date|"
    "second|minute|hour|day|week|month|quarter|period|year|yr",
    re.IGNORECASE,
)
"""Matches the whole name of a column whose sorted numbers are times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeOrder:
    """Column that orders rows in time, and its values."""

    column: str
    times: "pd.Series[Any]"
    """Dates, or numbers that increase with time."""

    date_format: str | None
    """Value of ``date_format`` of the source; None for ISO 8601 and for numbers."""

    reason: str

    @property
    def index_kind(self) -> ColumnKind:
        """Type of the times: "datetime", "int" or "float"."""
        kinds: dict[str, ColumnKind] = {"M": "datetime", "f": "float"}
        return kinds.get(self.times.dtype.kind, "int")

    @property
    def has_repeated_times(self) -> bool:
        """Whether several rows have the same time."""
        return bool(self.times.duplicated().any())

    @property
    def interval_days(self) -> float:
        """Median interval between successive times [days]; NaN for numbers."""
        if self.index_kind != "datetime":
            return float("nan")
        intervals_s = self.times.sort_values().diff().dropna().dt.total_seconds()
        return float(intervals_s.median()) / 86_400


def find_time_order(rows: pd.DataFrame, dates: Mapping[str, DateColumn]) -> TimeOrder | None:
    """Return the order of the rows in time; None if no column orders them.

    This column is the first sorted column of dates, otherwise the first column of dates, otherwise
    the first sorted column of numbers with a name such as "time" or "year". Columns with fewer than
    ``MIN_TIMES`` distinct times, and dates of birth, are not considered.

    Args:
        rows: The table without its target.
        dates: The columns of ``rows`` that contain dates, by name.
    """
    usable_dates = {
        name: column
        for name, column in dates.items()
        if column.dates.nunique() >= MIN_TIMES and not _BIRTH_NAME.search(name)
    }
    sorted_names = [
        name for name, column in usable_dates.items() if column.dates.is_monotonic_increasing
    ]
    name = next(iter([*sorted_names, *usable_dates]), None)
    if name is not None:
        return _order_by_dates(name, usable_dates[name])
    for column in rows.columns:
        if str(column) not in dates and _orders_rows(rows[column]):
            return _order_by_numbers(rows[column])
    return None


def _orders_rows(series: "pd.Series[Any]") -> bool:
    """Whether a column contains sorted numbers, and has the name of a time."""
    return (
        _NUMBER_NAME.fullmatch(str(series.name)) is not None
        and series.dtype.kind in "iuf"
        and bool(np.isfinite(series.to_numpy(np.float64)).all())
        and series.is_monotonic_increasing
        and series.nunique() >= MIN_TIMES
    )


def _order_by_dates(name: str, column: DateColumn) -> TimeOrder:
    reason = (
        f"'{name}' has dates from {column.dates.min():%Y-%m-%d} to {column.dates.max():%Y-%m-%d}: "
        "train rows are earlier than test rows."
    )
    if column.dates.duplicated().any():
        reason += (
            f" {column.dates.nunique():,} distinct dates; rows of one date stay together, and the "
            "promotion gate counts them as one observation."
        )
    return TimeOrder(
        column=name,
        times=column.dates,
        date_format=column.format,
        reason=" ".join(filter(None, (reason, column.note))),
    )


def _order_by_numbers(numbers: "pd.Series[Any]") -> TimeOrder:
    reason = (
        f"The rows are sorted by '{numbers.name}', from {numbers.min():.10g} to "
        f"{numbers.max():.10g}, which seems to be a time: train rows are earlier than test rows."
    )
    if numbers.duplicated().any():
        reason += (
            f" {numbers.nunique():,} distinct numbers; rows with one number stay together, and the "
            "promotion gate counts them as one observation."
        )
    return TimeOrder(column=str(numbers.name), times=numbers, date_format=None, reason=reason)
