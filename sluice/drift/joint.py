"""Joint drift test of all columns: maximum mean discrepancy (MMD) with random features.

The relation between columns may change although the distribution of each column does not. A
Gaussian kernel over all columns detects such a change. With random features, the MMD compares the
mean features of two samples. Its null distribution comes from a block bootstrap, which combines
randomly drawn blocks of the reference's rows. The bootstrap needs only the mean features of each
block, which are stored.

A code is the number of the cell that contains a value (see ``drift.binning``); 0 means a missing
value.

Shape legend: N = rows, n = rows of one chunk, C = columns, G = codes, K = stored blocks,
F = features.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.drift.calibration import (
    NullDistribution,
    chunk_sizes,
    draw_size,
    draw_sums,
    null_from_draws,
)
from sluice.drift.columns import ColumnReference, normal_scores
from sluice.drift.dependence import Dependence, block_starts, measure_dependence

_CHUNK_ROWS = 16_384
"""Number of rows whose features a thread computes at a time."""

_BLOCK_LENGTH_FEATURES = 8
"""Number of features from which the block length is estimated. A few features are sufficient,
because each feature depends on all columns."""

MapFunction = Callable[..., Iterable[NDArray[np.float64]]]
"""``map``, or the ``map`` method of a thread pool."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RandomFeatures:
    """Random Fourier features of rows: numbers as normal scores, categories as one-hot vectors.

    Source:
        Random features: Rahimi & Recht (2007), NeurIPS 20. Maximum mean discrepancy: Gretton et al.
        (2012), JMLR 13.
    """

    numeric_positions: tuple[int, ...]
    """Positions of the numeric columns."""

    score_CG: tuple[NDArray[np.float32], ...]
    """Normal score of each code, for each numeric column."""

    frequency_CF: NDArray[np.float32]
    """Factor of a numeric column's normal score in the angle of each feature."""

    category_positions: tuple[int, ...]
    """Positions of the category columns."""

    table_CGF: tuple[NDArray[np.float32], ...]
    """Angle that each code of a category column adds to each feature; a feature is the cosine of
    the sum of its angles."""

    phase_F: NDArray[np.float32]
    """Random constant angle of each feature."""

    @classmethod
    def draw(
        cls, columns: Sequence[ColumnReference], num_features: int, seed: int
    ) -> "RandomFeatures":
        """Draw the features for the columns of a reference.

        The kernel width is the root mean square distance of two rows of the reference. The mean
        square follows from the shares of the codes. The usual median heuristic would need the
        distances of pairs of rows.
        """
        rng = np.random.default_rng(seed)
        numeric_positions = tuple(i for i, column in enumerate(columns) if column.kind == "numeric")
        category_positions = tuple(
            i for i, column in enumerate(columns) if column.kind == "category"
        )
        # Total variance of the one-hot vectors; each normal score has variance 1.
        category_variance = sum(
            1 - float((columns[i].share_G ** 2).sum()) for i in category_positions
        )
        width = math.sqrt(2 * (len(numeric_positions) + category_variance))

        def draw_frequencies(num_inputs: int) -> NDArray[np.float32]:
            standard_normal = rng.normal(size=(num_inputs, num_features)).astype(np.float32)
            return np.asarray(standard_normal / np.float32(width))

        return cls(
            numeric_positions=numeric_positions,
            score_CG=tuple(normal_scores(columns[i]).astype(np.float32) for i in numeric_positions),
            frequency_CF=draw_frequencies(len(numeric_positions)),
            category_positions=category_positions,
            table_CGF=tuple(
                draw_frequencies(columns[i].cells.num_cells + 1) for i in category_positions
            ),
            phase_F=rng.uniform(0, 2 * np.pi, num_features).astype(np.float32),
        )

    def compute(self, code_CN: Sequence[NDArray[np.uint8]], rows: slice) -> NDArray[np.float32]:
        """Return the features (n, F) of a slice of rows, from the codes of all columns."""
        angle_nF = np.tile(self.phase_F, (code_CN[0][rows].size, 1))
        if self.numeric_positions:
            score_nC = np.empty((angle_nF.shape[0], len(self.numeric_positions)), np.float32)
            for i, (position, score_G) in enumerate(
                zip(self.numeric_positions, self.score_CG, strict=True)
            ):
                score_nC[:, i] = score_G[code_CN[position][rows]]
            angle_nF += score_nC @ self.frequency_CF
        for position, table_GF in zip(self.category_positions, self.table_CGF, strict=True):
            angle_nF += table_GF[code_CN[position][rows]]
        np.cos(angle_nF, out=angle_nF)
        return angle_nF

    def mean(
        self, code_CN: Sequence[NDArray[np.uint8]], map_function: MapFunction
    ) -> NDArray[np.float64]:
        """Return the mean of each feature over all rows (F,)."""
        num_rows = code_CN[0].size
        chunks = [slice(start, start + _CHUNK_ROWS) for start in range(0, num_rows, _CHUNK_ROWS)]
        sums = map_function(
            lambda rows: self.compute(code_CN, rows).sum(axis=0, dtype=np.float64), chunks
        )
        mean_F: NDArray[np.float64] = np.sum(list(sums), axis=0) / num_rows
        return mean_F


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JointReference:
    """Means of the features over the reference and over its stored blocks."""

    num_rows: int
    mean_F: NDArray[np.float64]
    block_KF: NDArray[np.float32]
    dependence: Dependence
    """Serial dependence of the rows, not the relation between columns."""

    @classmethod
    def of(
        cls,
        features: RandomFeatures,
        code_CN: Sequence[NDArray[np.uint8]],
        per_test_alpha: float,
        map_function: MapFunction,
    ) -> "JointReference":
        """Return the joint reference of rows, from the codes of all columns.

        Args:
            features: Random features of the rows.
            code_CN: Codes of all columns.
            per_test_alpha: P-value at which this test raises an alarm. It affects the inflation
                factor of the serial dependence (``measure_dependence``).
            map_function: Computes the features of several chunks of rows.
        """
        num_rows = code_CN[0].size
        recent_rows = slice(max(0, num_rows - 10_000), num_rows)
        sample_nF = features.compute(code_CN, recent_rows)[:, :_BLOCK_LENGTH_FEATURES].astype(
            np.float64
        )
        dependence = measure_dependence([x_n for x_n in sample_nF.T.copy()], per_test_alpha)
        length = dependence.block_length
        means = []
        for start in block_starts(num_rows):
            codes = [code_N.take(range(start, start + length), mode="wrap") for code_N in code_CN]
            means.append(features.compute(codes, slice(None)).mean(axis=0))
        return cls(
            num_rows=num_rows,
            mean_F=features.mean(code_CN, map_function),
            block_KF=np.array(means, np.float32),
            dependence=dependence,
        )

    def distance(self, mean_F: NDArray[np.float64]) -> float:
        """Return the squared MMD of a window with this mean of the features."""
        return float(_squared_mmd(mean_F - self.mean_F))

    def calibrate(self, *, num_rows: int, num_draws: int, seed: int) -> NullDistribution:
        """Return the null distribution of the squared MMD of windows with ``num_rows`` rows.

        The windows are resampled from the blocks of the reference.
        """
        rng = np.random.default_rng([seed, num_rows])
        num_blocks, scale = draw_size(self.dependence, num_rows, self.num_rows)
        block_KF = self.block_KF.astype(np.float64)
        block_KF -= block_KF.mean(axis=0)
        chunks = [
            _squared_mmd(scale * draw_sums(block_KF, num_blocks, chunk_size, rng) / num_blocks)
            for chunk_size in chunk_sizes(num_draws)
        ]
        return null_from_draws(np.concatenate(chunks)[:, None], num_rows)


def _squared_mmd(difference_F: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the squared MMD: twice the mean square of the difference of the mean features."""
    squared: NDArray[np.float64] = 2 * (difference_F**2).mean(axis=-1)
    return squared
