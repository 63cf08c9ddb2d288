"""All columns together: maximum mean discrepancy on random features.

Two columns may each look as before and still move against each other. A Gaussian kernel over all
columns sees that; random features make it a difference of means, additive over blocks of rows.

Shape legend: N = rows, n = rows of one piece, C = columns, G = cells, K = kept blocks,
F = features, D = draws.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.drift.calibration import Null, draw_pieces, draw_size, draw_sums, null_of
from sluice.drift.columns import ColumnReference, scores
from sluice.drift.dependence import Dependence, block_starts, measure_dependence

_PIECE_ROWS = 16_384
_DEPENDENCE_FEATURES = 8
"""The block length is that of the first few features; each mixes all columns."""

Map = Callable[..., Iterable[NDArray[np.float64]]]
"""``map``, or that of a pool of threads."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Features:
    """Cosine features of a row: of normal scores of numbers, and of categories one by one.

    Source:
        Rahimi & Recht (2007), NeurIPS 20; Gretton et al. (2012), JMLR 13, the discrepancy.
    """

    numeric: tuple[int, ...]
    """Places of the numeric columns."""

    score_CG: tuple[NDArray[np.float32], ...]
    """Normal score of each code, for each of them."""

    weight_CF: NDArray[np.float32]
    category: tuple[int, ...]
    table_CGF: tuple[NDArray[np.float32], ...]
    """What each code of a category column adds to each feature."""

    phase_F: NDArray[np.float32]

    @classmethod
    def draw(cls, columns: Sequence[ColumnReference], num_features: int, seed: int) -> "Features":
        """Draw the features for the columns of a reference.

        The kernel is as wide as two rows of the reference lie apart on average (root mean
        square), the usual choice up to the median in place of the mean.
        """
        rng = np.random.default_rng(seed)
        numeric = tuple(at for at, column in enumerate(columns) if column.kind == "numeric")
        category = tuple(at for at, column in enumerate(columns) if column.kind == "category")
        spread = sum(1 - float((columns[at].share_G ** 2).sum()) for at in category)
        width = math.sqrt(2 * (len(numeric) + spread))

        def weights(count: int) -> NDArray[np.float32]:
            drawn: NDArray[np.float32] = rng.normal(size=(count, num_features)).astype(np.float32)
            return drawn / np.float32(width)

        return cls(
            numeric=numeric,
            score_CG=tuple(scores(columns[at]).astype(np.float32) for at in numeric),
            weight_CF=weights(len(numeric)),
            category=category,
            table_CGF=tuple(weights(columns[at].cells.num_cells + 1) for at in category),
            phase_F=rng.uniform(0, 2 * np.pi, num_features).astype(np.float32),
        )

    def of(self, code_CN: Sequence[NDArray[np.uint8]], rows: slice) -> NDArray[np.float32]:
        """Return the features (n, F) of some rows, from the codes of every column."""
        angle_nF = np.tile(self.phase_F, (code_CN[0][rows].size, 1))
        if self.numeric:
            score_nC = np.empty((angle_nF.shape[0], len(self.numeric)), np.float32)
            for place, (at, score_G) in enumerate(zip(self.numeric, self.score_CG, strict=True)):
                score_nC[:, place] = score_G[code_CN[at][rows]]
            angle_nF += score_nC @ self.weight_CF
        for at, table_GF in zip(self.category, self.table_CGF, strict=True):
            angle_nF += table_GF[code_CN[at][rows]]
        np.cos(angle_nF, out=angle_nF)
        return angle_nF

    def mean(self, code_CN: Sequence[NDArray[np.uint8]], run: Map) -> NDArray[np.float64]:
        """Return the mean of each feature over all rows (F,)."""
        num_rows = code_CN[0].size
        pieces = [slice(at, at + _PIECE_ROWS) for at in range(0, num_rows, _PIECE_ROWS)]
        sums = run(lambda rows: self.of(code_CN, rows).sum(axis=0, dtype=np.float64), pieces)
        mean_F: NDArray[np.float64] = np.sum(list(sums), axis=0) / num_rows
        return mean_F


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JointReference:
    """Means of the features over the reference and over its kept blocks."""

    num_rows: int
    mean_F: NDArray[np.float64]
    block_KF: NDArray[np.float32]
    dependence: Dependence

    @classmethod
    def of(
        cls, features: Features, code_CN: Sequence[NDArray[np.uint8]], tail: float, run: Map
    ) -> "JointReference":
        """Measure the reference's rows, given as codes of every column."""
        num_rows = code_CN[0].size
        recent = slice(max(0, num_rows - 10_000), num_rows)
        some_nF = features.of(code_CN, recent)[:, :_DEPENDENCE_FEATURES].astype(np.float64)
        dependence = measure_dependence([x_n for x_n in some_nF.T.copy()], tail)
        length = dependence.block_length
        means = []
        for start in block_starts(num_rows):
            rows = [code_N.take(range(start, start + length), mode="wrap") for code_N in code_CN]
            means.append(features.of(rows, slice(None)).mean(axis=0))
        return cls(
            num_rows=num_rows,
            mean_F=features.mean(code_CN, run),
            block_KF=np.array(means, np.float32),
            dependence=dependence,
        )

    def distance(self, mean_F: NDArray[np.float64]) -> float:
        """Return the squared discrepancy of a window whose features have this mean."""
        return float(_squared(mean_F - self.mean_F))

    def calibrate(self, *, num_rows: int, draws: int, seed: int) -> Null:
        """Return the discrepancies of windows that come from the reference."""
        rng = np.random.default_rng([seed, num_rows])
        number, scale = draw_size(self.dependence, num_rows, self.num_rows)
        block_KF = self.block_KF.astype(np.float64)
        block_KF -= block_KF.mean(axis=0)
        pieces = [
            _squared(scale * draw_sums(block_KF, number, size, rng) / number)
            for size in draw_pieces(draws)
        ]
        return null_of(np.concatenate(pieces)[:, None], num_rows)


def _squared(moved_F: NDArray[np.float64]) -> NDArray[np.float64]:
    """Twice the mean square: with cosines of random phase that estimates the kernel's distance."""
    squared: NDArray[np.float64] = 2 * (moved_F**2).mean(axis=-1)
    return squared
