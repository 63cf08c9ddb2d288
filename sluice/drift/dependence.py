"""Serial dependence of rows: block length of the bootstrap, and correction of its variance.

Shape legend: N = rows of the reference, F = series, K = stored blocks, b = rows of a block.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from sluice.evaluation.variance import (
    choose_block_length,
    circular_block_variance,
    rows_component,
    shortest_block,
)

MAX_BLOCKS = 2048
"""Maximum number of blocks that a reference stores for resampling. Their first rows are evenly
spaced."""

_LENGTH_ROWS = 10_000
"""Number of newest rows from which the block length is estimated. With more rows the estimate
changes little, and the sums use several threads, whose synchronization is slow."""

_EVEN_RATIO = 0.75
"""Rows count as more evenly spread than independent rows if the variance of their mean is below
this share of the variance for independent rows. The block length is then 1. Estimates for
independent rows are rarely this low."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependence:
    """Serial dependence of the rows of a column, as parameters of its block bootstrap."""

    block_length: int
    """Number of consecutive rows in a block [rows]."""

    inflation: float
    """Factor for resampled deviations, which corrects for the ends of blocks and for a small number
    of blocks; NaN if the reference is too short to estimate it."""


def measure_dependence(series: list[NDArray[np.float64]], per_test_alpha: float) -> Dependence:
    """Return the largest block length of several series of a column, and the inflation factor.

    The block length is 1 if the mean of a window varies clearly less than the mean of independent
    rows. An example is the weekday: each weekday is equally frequent in consecutive rows. Longer
    blocks would preserve this evenness, but servers sample requests at random, and a random sample
    varies like independent rows.

    The factor corrects two effects. First, drawn blocks are independent of each other, so
    resampling underestimates the variance; ``rows_component`` returns a corrected variance. Second,
    a variance estimated from few blocks is uncertain. Student's t distribution instead of the
    normal distribution accounts for this, at the small p-value that raises an alarm.

    Args:
        series: Series (N,) in time order, such as the ranks of a column and their distances from
            the median: volatility may be clustered even if the values are uncorrelated.
        per_test_alpha: P-value at which a single test raises an alarm. A smaller p-value gives a
            larger inflation factor.
    """
    length = max(map(_block_length, series))
    num_rows = series[0].size
    if num_rows < 2 * length:
        return Dependence(block_length=length, inflation=math.nan)
    corrected_variance = sum(rows_component(x_N, length).variance for x_N in series)
    independent_variance = sum(float(x_N.var()) for x_N in series) / num_rows
    if corrected_variance < _EVEN_RATIO * independent_variance:
        return Dependence(block_length=1, inflation=1.0)
    resampled_variance = sum(circular_block_variance(x_N, length) for x_N in series)
    ratio = corrected_variance / resampled_variance if resampled_variance > 0 else 1.0
    quantile = 1 - per_test_alpha / 2
    student_factor = float(stdtrit(num_rows / length - 1, quantile) / ndtri(quantile))
    return Dependence(block_length=length, inflation=math.sqrt(ratio) * student_factor)


def block_starts(num_rows: int) -> NDArray[np.int64]:
    """Return the first rows of the stored blocks (K,).

    These are all rows or, if there are more than ``MAX_BLOCKS``, evenly spaced rows.
    """
    num_blocks = min(num_rows, MAX_BLOCKS)
    return np.arange(num_blocks) * num_rows // num_blocks


def block_counts(
    code_N: NDArray[np.uint8], num_cells: int, block_length: int
) -> NDArray[np.uint16]:
    """Return the number of rows of each block in each cell, missing values first (K, 1 + G).

    Blocks wrap around the end of the rows.
    """
    start_K = block_starts(code_N.size)
    rows_Kb = (start_K[:, None] + np.arange(block_length)) % code_N.size
    num_codes = num_cells + 1
    block_code_Kb = np.arange(start_K.size)[:, None] * num_codes + code_N[rows_Kb]
    counts = np.bincount(block_code_Kb.ravel(), minlength=start_K.size * num_codes)
    return counts.reshape(start_K.size, num_codes).astype(np.uint16)


def _block_length(x_N: NDArray[np.float64]) -> int:
    shortest = shortest_block(x_N.size, 1)
    recent_N = x_N[-_LENGTH_ROWS:]
    if not recent_N.std() > 0:
        return shortest
    return min(max(choose_block_length(recent_N, 1), shortest), x_N.size)
