"""Naive tests for comparison with the promotion gate; each ignores some sources of variance.

Each test returns the lower bound of the one-sided confidence interval of the mean gain at level
1 - ``alpha``.

Shape legend: S = seeds, N = rows.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from sluice.evaluation.estimate import ArmLosses, estimate_gain, mean_gain
from sluice.evaluation.variance import VarianceComponent, add_components

NaiveBound = Callable[[ArmLosses, ArmLosses, NDArray[np.int64], int, float], float]
"""Computes the lower bound of the gain. Its arguments are candidate, reference, folds (N,), block
length and alpha."""


def pooled_bound(
    candidate: ArmLosses,
    reference: ArmLosses,
    fold_N: NDArray[np.int64],
    block_length: int,
    alpha: float,
) -> float:
    """Treat every seed on every row as a replicate: one-sample t-test on the S x N gains.

    A gain is the reference's mean loss over its seeds on a row, minus the candidate's loss.
    """
    del fold_N, block_length
    gain_SN = reference.loss_SN.mean(axis=0) - candidate.loss_SN
    variance = float(gain_SN.var(ddof=1)) / gain_SN.size
    return _lower_bound(
        float(gain_SN.mean()),
        VarianceComponent(variance=variance, degrees_of_freedom=gain_SN.size - 1),
        alpha,
    )


def seed_only_bound(
    candidate: ArmLosses,
    reference: ArmLosses,
    fold_N: NDArray[np.int64],
    block_length: int,
    alpha: float,
) -> float:
    """Treat seeds as replicates and rows as fixed: Welch's t-test on seed means."""
    estimate = estimate_gain(candidate, reference, fold_N, block_length=block_length)
    seeds = add_components((estimate.candidate_component, estimate.reference_component))
    return _lower_bound(estimate.gain, seeds, alpha)


def block_only_bound(
    candidate: ArmLosses,
    reference: ArmLosses,
    fold_N: NDArray[np.int64],
    block_length: int,
    alpha: float,
) -> float:
    """Treat blocks of rows as replicates and seeds as fixed: t-test with the block variance."""
    estimate = estimate_gain(candidate, reference, fold_N, block_length=block_length)
    return _lower_bound(estimate.gain, estimate.row_component, alpha)


def row_only_bound(
    candidate: ArmLosses,
    reference: ArmLosses,
    fold_N: NDArray[np.int64],
    block_length: int,
    alpha: float,
) -> float:
    """Treat rows as independent replicates: paired t-test on seed-averaged losses."""
    del fold_N, block_length
    gain_N = mean_gain(candidate, reference)
    component = VarianceComponent(
        variance=float(gain_N.var(ddof=1)) / gain_N.size, degrees_of_freedom=gain_N.size - 1
    )
    return _lower_bound(float(gain_N.mean()), component, alpha)


NAIVE_BOUNDS: Mapping[str, NaiveBound] = MappingProxyType(
    {
        "pooled": pooled_bound,
        "seeds only": seed_only_bound,
        "blocks only": block_only_bound,
        "rows only": row_only_bound,
    }
)


def _lower_bound(gain: float, component: VarianceComponent, alpha: float) -> float:
    if not component.variance > 0:
        return gain
    return gain - float(stdtrit(component.degrees_of_freedom, 1 - alpha)) * math.sqrt(
        component.variance
    )
