"""Null distributions of the distances, from a block bootstrap of the reference.

The reference is a sample itself. Therefore, the difference between a window of n rows and a
reference of R rows varies more than the window alone. It has the variance of a single window of
n R / (n + R) rows, and windows of this size are drawn.

Shape legend: D = draws, K = stored blocks, G = cells (or features), S = statistics.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.config.drift_settings import DriftSettings
from sluice.drift.columns import ColumnReference
from sluice.drift.dependence import Dependence

MAX_DRAWN_BLOCKS = 64
"""Maximum number of blocks that are drawn for a resampled window. If a window has more blocks, the
deviations are scaled down to the size of the window."""

_CHUNK_DRAWS = 8192
"""Maximum number of resampled windows in memory at a time, for each thread."""

_TIE_RTOL = 1e-6
"""Relative tolerance within which distances count as equal, because they are stored in single
precision."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NullDistribution:
    """Distribution of the distances of windows without drift."""

    num_rows: int
    """Number of rows of a window."""

    distance_DS: NDArray[np.float32]
    """Distances of the drawn windows by statistic (D, S); each column is in ascending order."""

    smallest_p_D: NDArray[np.float64]
    """Smallest p-value of the statistics of each drawn window (D,), in ascending order."""

    def p_values(self, distance_S: NDArray[np.float64]) -> tuple[float, ...]:
        """Return the p-value of each statistic; NaN for a non-finite distance."""
        num_draws = self.smallest_p_D.size
        p_values = []
        for null_D, distance in zip(self.distance_DS.T, distance_S.tolist(), strict=True):
            num_below = int(np.searchsorted(null_D, np.float32(distance * (1 - _TIE_RTOL)), "left"))
            p_value = (1 + num_draws - num_below) / (num_draws + 1)
            p_values.append(p_value if math.isfinite(distance) else math.nan)
        return tuple(p_values)

    def combined_p_value(self, p_S: tuple[float, ...]) -> float:
        """Return the p-value of the smallest of several p-values (min-p test)."""
        if not all(map(math.isfinite, p_S)):
            return math.nan
        num_draws = self.smallest_p_D.size
        num_at_most = int(np.searchsorted(self.smallest_p_D, min(p_S) * (1 + _TIE_RTOL), "right"))
        return (1 + num_at_most) / (num_draws + 1)

    def thresholds(self, rate: float) -> tuple[float, ...]:
        """Return for each statistic the distance that windows without drift exceed at this rate."""
        return tuple(np.quantile(self.distance_DS, 1 - rate, axis=0).tolist())


def calibrate_column(
    column: ColumnReference, settings: DriftSettings, *, num_rows: int, num_draws: int, seed: int
) -> NullDistribution:
    """Return the null distribution of a column's distances, from windows of the reference.

    Args:
        column: Reference of the column.
        settings: Drift settings with the number of PSI bins.
        num_rows: Size of the windows that will be evaluated [rows].
        num_draws: Number of resampled windows.
        seed: Seed of the draws, combined with the column's name.

    Cost:
        30 ms for 2,000 windows of a column of 50 cells. Except for the distances themselves,
        memory does not grow with ``num_draws``.
    """
    rng = _make_generator(seed, column.name, num_rows)
    num_blocks, scale = draw_size(column.dependence, num_rows, column.num_rows)
    block_KG = column.block_KG.astype(np.float64)
    total_G = block_KG.sum(axis=0)
    chunks = []
    for chunk_size in chunk_sizes(num_draws):
        drawn_DG = draw_sums(block_KG, num_blocks, chunk_size, rng)
        with np.errstate(invalid="ignore"):  # a draw in which every value is missing
            change_DG = drawn_DG[:, 1:] / drawn_DG[:, 1:].sum(axis=1, keepdims=True)
        change_DG -= total_G[1:] / total_G[1:].sum()
        missing_change_D = drawn_DG[:, 0] / drawn_DG.sum(axis=1) - total_G[0] / total_G.sum()
        distance_DS = column.distances(
            column.share_G + scale * change_DG,
            column.missing_rate + scale * missing_change_D,
            settings,
            num_rows,
        )
        chunks.append(np.where(np.isnan(distance_DS), np.inf, distance_DS))
    return null_from_draws(np.concatenate(chunks), num_rows)


def draw_size(dependence: Dependence, num_rows: int, reference_rows: int) -> tuple[int, float]:
    """Return the number of blocks to draw for a window, and the factor that scales deviations.

    >>> draw_size(Dependence(block_length=10, inflation=1.0), 500, 500)
    (25, 1.0)
    """
    rows = num_rows * reference_rows / (num_rows + reference_rows)
    num_blocks = min(max(round(rows / dependence.block_length), 1), MAX_DRAWN_BLOCKS)
    return num_blocks, dependence.inflation * math.sqrt(num_blocks * dependence.block_length / rows)


def chunk_sizes(num_draws: int) -> list[int]:
    """Return the chunk sizes in which resamples are drawn, so that memory is bounded.

    >>> chunk_sizes(20_000)
    [8192, 8192, 3616]
    """
    starts = range(0, num_draws, _CHUNK_DRAWS)
    return [min(_CHUNK_DRAWS, num_draws - start) for start in starts]


def draw_sums(
    block_KG: NDArray[np.float64], num_blocks: int, num_draws: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return for each draw the sum (D, G) over ``num_blocks`` blocks drawn with replacement."""
    sum_DG = np.zeros((num_draws, block_KG.shape[1]))
    for _ in range(num_blocks):
        sum_DG += block_KG[rng.integers(block_KG.shape[0], size=num_draws)]
    return sum_DG


def null_from_draws(distance_DS: NDArray[np.float64], num_rows: int) -> NullDistribution:
    """Return the null distribution from the distances of windows of ``num_rows`` rows (D, S)."""
    num_draws = distance_DS.shape[0]
    rounded_DS = distance_DS.astype(np.float32)
    sorted_DS = np.sort(rounded_DS, axis=0)
    smallest_p_D = np.full(num_draws, np.inf)
    for sorted_D, distance_D in zip(sorted_DS.T, rounded_DS.T, strict=True):
        num_at_least_D = num_draws - np.searchsorted(sorted_D, distance_D, "left")
        smallest_p_D = np.minimum(smallest_p_D, num_at_least_D / num_draws)
    return NullDistribution(
        num_rows=num_rows, distance_DS=sorted_DS, smallest_p_D=np.sort(smallest_p_D)
    )


def _make_generator(seed: int, name: str, num_rows: int) -> np.random.Generator:
    """Return the generator of a column; its draws do not depend on the other columns."""
    return np.random.default_rng([seed, num_rows, *name.encode()])
