"""What the gate is compared with: tests that forget a source of chance, one each.

Each returns whether a one-sided test at ``alpha`` finds the mean gain above ``required``.

Shape legend: S = seeds, N = rows.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from sluice.evaluation.estimate import Arm, estimate_gain, mean_gain
from sluice.evaluation.variance import Part, pooled

NaiveBound = Callable[[Arm, Arm, NDArray[np.int64], int, float], float]
"""Lower bound of the gain from candidate, reference, folds (N,), block length and alpha."""


def pooled_bound(
    candidate: Arm, reference: Arm, fold_N: NDArray[np.int64], block_length: int, alpha: float
) -> float:
    """Every seed on every row is a replicate: Welch's t-test on S x N losses, paired by row."""
    del fold_N, block_length
    gain_SN = reference.loss_SN.mean(axis=0) - candidate.loss_SN
    variance = float(gain_SN.var(ddof=1)) / gain_SN.size
    return _bound(
        float(gain_SN.mean()), Part(variance=variance, degrees_of_freedom=gain_SN.size - 1), alpha
    )


def seed_only_bound(
    candidate: Arm, reference: Arm, fold_N: NDArray[np.int64], block_length: int, alpha: float
) -> float:
    """Seeds are the replicates, the rows are taken as given: Welch's t-test on seed means."""
    estimate = estimate_gain(candidate, reference, fold_N, block_length=block_length)
    seeds = pooled((estimate.candidate_seeds, estimate.reference_seeds))
    return _bound(estimate.gain, seeds, alpha)


def block_only_bound(
    candidate: Arm, reference: Arm, fold_N: NDArray[np.int64], block_length: int, alpha: float
) -> float:
    """Blocks of rows are the replicates, the seeds are taken as given."""
    estimate = estimate_gain(candidate, reference, fold_N, block_length=block_length)
    return _bound(estimate.gain, estimate.rows, alpha)


def row_only_bound(
    candidate: Arm, reference: Arm, fold_N: NDArray[np.int64], block_length: int, alpha: float
) -> float:
    """Rows are independent replicates: the paired t-test on seed-averaged losses."""
    del fold_N, block_length
    gain_N = mean_gain(candidate, reference)
    part = Part(
        variance=float(gain_N.var(ddof=1)) / gain_N.size, degrees_of_freedom=gain_N.size - 1
    )
    return _bound(float(gain_N.mean()), part, alpha)


NAIVE: Mapping[str, NaiveBound] = MappingProxyType(
    {
        "pooled": pooled_bound,
        "seeds only": seed_only_bound,
        "blocks only": block_only_bound,
        "rows only": row_only_bound,
    }
)


def _bound(gain: float, part: Part, alpha: float) -> float:
    if not part.variance > 0:
        return gain
    return gain - float(stdtrit(part.degrees_of_freedom, 1 - alpha)) * math.sqrt(part.variance)
