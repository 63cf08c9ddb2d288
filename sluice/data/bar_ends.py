"""Computes the last tick of every bar for each bar rule, with loops compiled by numba.

The loops are compiled on first use, so importing this module is fast. Compiled code is cached in
``__pycache__``, in ``NUMBA_CACHE_DIR`` or in the user's cache folder. If none of these is writable,
every process compiles the loops again.
"""

import functools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.data.bar_rules import BarRule, DollarBars, RangeBars, TickBars, TimeBars, VolumeBars

_ROUNDING_FACTOR = 1 - 1e-9
"""A threshold counts as reached at this share of its value, because sums are rounded: the sum of
ten sizes of 0.1 is slightly below 1."""

_TENTH_OF_BP = 1e-5
"""A tenth of a basis point, as a share."""

_Loop = Callable[[NDArray[np.float64], float], NDArray[np.int64]]
"""Function of (amounts or prices, threshold) that returns the last row of each bar."""


def bar_ends(
    time_N: NDArray[np.int64],
    price_N: NDArray[np.float64],
    size_N: NDArray[np.float64],
    rule: BarRule,
    *,
    units_per_s: int,
) -> NDArray[np.int64]:
    """Return the row of the last tick of every finished bar, ascending and with distinct times.

    Bars that would close at the same time are merged, because index labels must be unique.
    N = ticks, in time order.

    Args:
        time_N: Time of each tick since 1970-01-01, in units of ``1 / units_per_s`` seconds.
        price_N: Price of each tick, finite and above 0.
        size_N: Size of each tick, finite and at least 0.
        rule: Rule that closes a bar.
        units_per_s: Number of units of ``time_N`` per second.

    Cost:
        1 to 6 ns per tick; 0.8 s when a loop is first compiled, 0.4 s once in each later process.
    """
    match rule:
        case TimeBars():
            interval_N = time_N // (rule.seconds * units_per_s)
            # The last interval is not returned, because only a later tick shows that it has ended.
            return np.flatnonzero(interval_N[1:] != interval_N[:-1])
        case TickBars():
            ends = np.arange(rule.num_ticks - 1, time_N.size, rule.num_ticks, dtype=np.int64)
        case VolumeBars():
            ends = _compile_loop(_ends_by_sum)(size_N, rule.units * _ROUNDING_FACTOR)
        case DollarBars():
            ends = _compile_loop(_ends_by_sum)(price_N * size_N, rule.value * _ROUNDING_FACTOR)
        case RangeBars():
            relative_range = rule.tenths_of_bp * _TENTH_OF_BP * _ROUNDING_FACTOR
            ends = _compile_loop(_ends_by_range)(price_N, relative_range)
    label_N = time_N[ends]
    # Of bars with the same label, only the last end is kept.
    return ends[np.append(label_N[1:] != label_N[:-1], True)] if ends.size else ends


def _ends_by_sum(amount_N: NDArray[np.float64], threshold: float) -> NDArray[np.int64]:
    ends = np.empty(amount_N.size, np.int64)
    count = 0
    total = 0.0
    for row in range(amount_N.size):
        total += amount_N[row]
        if total >= threshold:
            ends[count] = row
            count += 1
            total = 0.0
    return ends[:count].copy()


def _ends_by_range(price_N: NDArray[np.float64], relative_range: float) -> NDArray[np.int64]:
    ends = np.empty(price_N.size, np.int64)
    count = 0
    high = low = required_range = 0.0  # 0 means that the next tick starts a bar
    for row in range(price_N.size):
        price = price_N[row]
        if required_range == 0.0:
            high = low = price
            required_range = relative_range * price
        elif price > high:
            high = price
        elif price < low:
            low = price
        if high - low >= required_range:
            ends[count] = row
            count += 1
            required_range = 0.0
    return ends[:count].copy()


@functools.cache
def _compile_loop(loop: _Loop) -> _Loop:
    from numba import njit, types

    # The argument is declared as read-only, because pandas returns read-only arrays. numba accepts
    # writable arrays, too.
    amounts = types.Array(types.float64, 1, "C", readonly=True)
    signature: Any = (amounts, types.float64)
    try:
        compiled: _Loop = njit(signature, cache=True)(loop)
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError):
        # The cache folder is not writable, the disk is full, or a crash truncated a cached file.
        compiled = njit(signature)(loop)
    return compiled
