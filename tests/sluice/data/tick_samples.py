"""Random ticks, and an independent exact reference implementation of the bar builder."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from sluice.data.bar_rules import (
    BarRule,
    DollarBars,
    RangeBars,
    TickBars,
    TimeBars,
    VolumeBars,
)

CENT = 100


def random_ticks(num_ticks: int, *, seed: int, pause_s: float = 5.0, unit: str = "us"):
    """Return ticks with integer cents and sizes; about 30 % repeat the time of the previous one."""
    rng = np.random.default_rng(seed)
    pause_N = np.where(rng.random(num_ticks) < 0.3, 0, rng.exponential(pause_s, num_ticks))
    second_N = np.cumsum(pause_N).astype(np.int64 if unit == "s" else np.float64)
    time_N = pd.Timestamp("2024-03-01 09:30").as_unit("us") + pd.to_timedelta(second_N, unit="s")
    price_N = 5_000 + np.cumsum(rng.integers(-3, 4, num_ticks))
    return pd.DataFrame(
        {
            "price": price_N / CENT,
            "size": rng.integers(0, 50, num_ticks).astype("float64"),
        },
        index=pd.DatetimeIndex(time_N, name="time").as_unit(unit),
    )


@dataclass
class ReferenceBar:
    """Bar to which ticks are added one by one; prices are integer cents, so sums are exact."""

    prices: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    time: pd.Timestamp | None = None

    def add(self, time: pd.Timestamp, price: float, size: float) -> None:
        self.prices.append(round(price * CENT))
        self.sizes.append(round(size))
        self.time = time

    def merge(self, later: "ReferenceBar") -> "ReferenceBar":
        return ReferenceBar(self.prices + later.prices, self.sizes + later.sizes, later.time)


def build_reference_bars(ticks: pd.DataFrame, rule: BarRule) -> pd.DataFrame:
    """Build bars in plain Python, with a list of ticks for each bar."""
    if isinstance(rule, TimeBars):
        bars, labels = _group_by_interval(ticks, rule.seconds)
    else:
        bars = _merge_bars_of_one_time(_close_bars(ticks, _is_full(rule)))
        labels = [bar.time for bar in bars]
    return pd.DataFrame(
        {
            "open": [bar.prices[0] / CENT for bar in bars],
            "high": [max(bar.prices) / CENT for bar in bars],
            "low": [min(bar.prices) / CENT for bar in bars],
            "close": [bar.prices[-1] / CENT for bar in bars],
            "volume": [float(sum(bar.sizes)) for bar in bars],
            "num_ticks": [len(bar.prices) for bar in bars],
        },
        index=pd.DatetimeIndex(labels, name="time").as_unit(ticks.index.unit),
    )


def _is_full(rule: BarRule) -> Callable[[ReferenceBar], bool]:
    match rule:
        case TickBars():
            return lambda bar: len(bar.prices) == rule.num_ticks
        case VolumeBars():
            return lambda bar: sum(bar.sizes) >= rule.units
        case DollarBars():
            return lambda bar: (
                sum(p * s for p, s in zip(bar.prices, bar.sizes, strict=True)) >= rule.value * CENT
            )
        case RangeBars():
            return lambda bar: (
                (max(bar.prices) - min(bar.prices)) * 100_000 >= rule.tenths_of_bp * bar.prices[0]
            )
    raise AssertionError(rule)


def _close_bars(ticks: pd.DataFrame, is_full: Callable[[ReferenceBar], bool]) -> list[ReferenceBar]:
    bars, bar = [], ReferenceBar()
    for time, price, size in ticks.itertuples():
        bar.add(time, price, size)
        if is_full(bar):
            bars.append(bar)
            bar = ReferenceBar()
    return bars


def _merge_bars_of_one_time(bars: list[ReferenceBar]) -> list[ReferenceBar]:
    kept: list[ReferenceBar] = []
    for bar in bars:
        if kept and kept[-1].time == bar.time:
            kept[-1] = kept[-1].merge(bar)
        else:
            kept.append(bar)
    return kept


def _group_by_interval(
    ticks: pd.DataFrame, seconds: int
) -> tuple[list[ReferenceBar], list[pd.Timestamp]]:
    bars: dict[pd.Timestamp, ReferenceBar] = {}
    for time, price, size in ticks.itertuples():
        end = time.floor(f"{seconds}s") + pd.Timedelta(seconds=seconds)
        bars.setdefault(end, ReferenceBar()).add(time, price, size)
    unfinished = [*bars][-1:]
    return [bars[end] for end in bars if end not in unfinished], [
        end for end in bars if end not in unfinished
    ]
