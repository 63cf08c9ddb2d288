"""Rows that depend on each other: how long a block must be, and what blocks leave out.

Shape legend: N = rows of the reference, F = series, K = kept blocks, b = rows of a block.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from sluice.evaluation.variance import (
    choose_block_length,
    circular_block_variance,
    rows_part,
    shortest_block,
)

MOST_BLOCKS = 2048
"""Blocks of the reference that are kept to draw from; their starts are evenly spread."""

_LENGTH_ROWS = 10_000
"""The block length is estimated from so many rows, the last ones: it grows slowly with more, and
beyond 10,000 the sums inside are spread over threads, which wait for each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependence:
    """What a block bootstrap of one column needs to know."""

    block_length: int
    """Rows of a block [rows]."""

    stretch: float
    """Drawn deviations are multiplied by it: what cut blocks and few of them leave out; NaN when
    the reference is too short to know."""


def measure_dependence(series: list[NDArray[np.float64]], tail: float) -> Dependence:
    """Return the longest block that one of several series of a column needs, and its stretch.

    The stretch mends two things. A block ends dependence at its end, which ``rows_part`` corrects;
    and a variance from few blocks is itself uncertain, which Student's distribution in place of
    the normal one allows for, at the small p-value where alarms are decided.

    Args:
        series: Each (N,) in time order, such as the ranks of a column and how far they lie from
            the middle: volatility may cluster where the values themselves are independent.
        tail: The p-value at which one column alone raises the alarm.
    """
    length = max(map(_block_length, series))
    num_rows = series[0].size
    if num_rows < 2 * length:
        return Dependence(block_length=length, stretch=math.nan)
    mended = sum(rows_part(x_N, length).variance for x_N in series)
    drawn = sum(circular_block_variance(x_N, length) for x_N in series)
    ratio = mended / drawn if drawn > 0 else 1.0
    quantile = 1 - tail / 2
    student = float(stdtrit(num_rows / length - 1, quantile) / ndtri(quantile))
    return Dependence(block_length=length, stretch=math.sqrt(ratio) * student)


def block_starts(num_rows: int) -> NDArray[np.int64]:
    """Return where the kept blocks begin: every row, or evenly spread ones when there are many."""
    kept = min(num_rows, MOST_BLOCKS)
    return np.arange(kept) * num_rows // kept


def block_counts(
    code_N: NDArray[np.uint8], num_cells: int, block_length: int
) -> NDArray[np.uint16]:
    """Return the rows of each kept block in each cell, missing values first (K, 1 + G).

    Blocks wrap around the end.
    """
    start_K = block_starts(code_N.size)
    rows_Kb = (start_K[:, None] + np.arange(block_length)) % code_N.size
    width = num_cells + 1
    place_Kb = np.arange(start_K.size)[:, None] * width + code_N[rows_Kb]
    counts = np.bincount(place_Kb.ravel(), minlength=start_K.size * width)
    return counts.reshape(start_K.size, width).astype(np.uint16)


def _block_length(x_N: NDArray[np.float64]) -> int:
    shortest = shortest_block(x_N.size, 1)
    recent_N = x_N[-_LENGTH_ROWS:]
    if not recent_N.std() > 0:
        return shortest
    return min(max(choose_block_length(recent_N, 1), shortest), x_N.size)
