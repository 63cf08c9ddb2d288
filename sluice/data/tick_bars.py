"""Builds bars of open, high, low, close and volume from ticks."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.errors import ContractError
from sluice.data.bar_ends import bar_ends
from sluice.data.bar_rules import BarRule, TimeBars
from sluice.data.schema import Column, Schema
from sluice.data.validation import validate_schema

TICK_SCHEMA = Schema(
    columns=(
        Column(name="price", unit="price", description="Price of one unit."),
        Column(name="size", unit="shares or contracts", description="Amount of the trade."),
    ),
    index_name="time",
    index_kind="datetime",
    index_unique=False,
)

_UNITS_PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def build_bars(ticks: pd.DataFrame, rule: BarRule) -> pd.DataFrame:
    """Return the finished bars of ``ticks``, labelled by the time when each bar is known.

    The label of a time bar is the end of its interval. The label of any other bar is the time of
    its last tick. Labels are ascending and unique, because bars that would close at the same time
    are merged. Ticks after the last finished bar are ignored, so that later ticks do not change a
    bar.

    Args:
        ticks: Trades in time order, with the columns of ``TICK_SCHEMA``; several trades may have
            the same time.
        rule: Rule that closes a bar.

    Returns:
        Columns open, high, low, close, volume and num_ticks; no rows if no bar was finished.

    Raises:
        SchemaError: A column is missing, a value is not a finite number, or the ticks are not in
            time order; the message names the first such row.
        ContractError: A price is not above 0 or a size is below 0; the message names the first such
            row.

    Cost:
        About 20 ns per tick (5,000,000 in 0.1 s) and 8 bytes per tick in addition to the table; see
        ``bar_ends``.

    Assumes:
        No tick with the time of the last tick is missing from the table.
    """
    validate_schema(ticks, TICK_SCHEMA, "ticks")
    _validate_values(ticks)
    index = pd.DatetimeIndex(ticks.index)
    price_N = _to_float64(ticks["price"])
    size_N = _to_float64(ticks["size"])
    units_per_s = _UNITS_PER_S[index.unit]
    ends = bar_ends(index.asi8, price_N, size_N, rule, units_per_s=units_per_s)
    if isinstance(rule, TimeBars):
        labels = _interval_ends(index[ends], rule.seconds * units_per_s)
    else:
        labels = index[ends]
    return pd.DataFrame(_bar_columns(price_N, size_N, ends), index=labels.rename(index.name))


def _bar_columns(
    price_N: NDArray[np.float64], size_N: NDArray[np.float64], ends: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    starts = np.append(0, ends[:-1] + 1) if ends.size else ends
    num_rows = int(ends[-1]) + 1 if ends.size else 0
    price_N, size_N = price_N[:num_rows], size_N[:num_rows]
    return {
        "open": price_N[starts],
        "high": np.maximum.reduceat(price_N, starts),
        "low": np.minimum.reduceat(price_N, starts),
        "close": price_N[ends],
        "volume": np.add.reduceat(size_N, starts),
        "num_ticks": ends - starts + 1,
    }


def _interval_ends(times: pd.DatetimeIndex, length: int) -> pd.DatetimeIndex:
    """Return the end of each time's interval; ``length`` is in the unit of the index."""
    labels = (times.asi8 // length + 1) * length
    labels_without_zone = pd.DatetimeIndex(labels.view(f"M8[{times.unit}]"))
    return (
        labels_without_zone
        if times.tz is None
        else labels_without_zone.tz_localize("UTC").tz_convert(times.tz)
    )


def _to_float64(series: "pd.Series[Any]") -> NDArray[np.float64]:
    return np.ascontiguousarray(series.to_numpy(np.float64))


def _validate_values(ticks: pd.DataFrame) -> None:
    violations = {
        "a tick's price must be above 0": ~(ticks["price"] > 0),
        "a tick's size must be at least 0": ~(ticks["size"] >= 0),
    }
    problems = []
    for rule, is_violated in violations.items():
        if is_violated.any():
            row = int(is_violated.to_numpy().argmax())
            tick = ticks.iloc[row]
            problems.append(
                f"{rule}, violated by {is_violated.sum()} of {len(ticks)} ticks, first at row "
                f"{row} (label {ticks.index[row]}: price {tick['price']:g}, size {tick['size']:g})"
            )
    if problems:
        raise ContractError(
            f"ticks: {'; '.join(problems)}.",
            cause="Cancelled trades, a sign that encodes the side of a trade, or swapped columns.",
            fix="Remove these ticks at the source, or map the columns with 'rename'.",
        )
