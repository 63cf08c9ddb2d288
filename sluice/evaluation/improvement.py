"""Probability of improvement: the probability that the candidate has the lower loss on a row.

This secondary test does not affect the decision, because a model with the lower loss on most rows
may still have the higher mean loss.

Shape legend: S, T = seeds of candidate and reference, N = rows.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from sluice.evaluation.estimate import ArmLosses
from sluice.evaluation.variance import (
    add_components,
    rows_component,
    scale_component,
    seeds_component,
)


class Improvement(NamedTuple):
    """Probability in [0, 1] with its one-sided bounds; 0.5 means no difference."""

    probability: float
    low: float
    high: float


def probability_of_improvement(
    candidate: ArmLosses,
    reference: ArmLosses,
    fold_N: NDArray[np.int64],
    *,
    block_length: int,
    alpha: float,
) -> Improvement:
    """Return the probability that a network of the candidate has the lower loss on a row.

    The probability is estimated over all rows and over all pairs of a seed of the candidate and a
    seed of the reference; equal losses count half. The variance has the same components as in the
    promotion gate: over the seeds of each arm, and over blocks of rows inside each fold.

    Args:
        candidate: Losses (S, N).
        reference: Losses on the same rows (T, N).
        fold_N: Fold of each row (N,); within a fold the rows are in time order.
        block_length: Length of a block of dependent rows [rows].
        alpha: Error rate of each bound.

    Returns:
        The probability and its bounds. All three are NaN if a loss is not finite. The bounds are
        NaN if a variance component is unknown or the variance is 0.

    Cost:
        O(S x T x N) time, O(N) memory.

    Source:
        Agarwal et al. (2021), NeurIPS 34; Brunner & Munzel (2000), Biometrical Journal 42(1).
    """
    candidate_SN, reference_TN = candidate.loss_SN, reference.loss_SN
    if not (np.isfinite(candidate_SN).all() and np.isfinite(reference_TN).all()):
        return Improvement(math.nan, math.nan, math.nan)
    probability_N = np.zeros(fold_N.size)
    probability_ST = np.empty((len(candidate_SN), len(reference_TN)))
    for s, candidate_N in enumerate(candidate_SN):
        for t, reference_N in enumerate(reference_TN):
            # 1 if the candidate has the lower loss, 0.5 if the losses are equal, else 0.
            score_N = 0.5 * (np.sign(reference_N - candidate_N) + 1)
            probability_N += score_N
            probability_ST[s, t] = score_N.mean()
    probability_N /= probability_ST.size
    total_component = add_components(
        (
            seeds_component(
                probability_ST.mean(axis=1), is_deterministic=candidate.is_deterministic
            ),
            seeds_component(
                probability_ST.mean(axis=0), is_deterministic=reference.is_deterministic
            ),
            *(
                scale_component(
                    rows_component(probability_N[mask_N], block_length), float(mask_N.mean())
                )
                for mask_N in (fold_N == fold for fold in np.unique(fold_N))
            ),
        )
    )
    probability = float(probability_N.mean())
    critical_t = float(stdtrit(total_component.degrees_of_freedom, 1 - alpha))
    distance = critical_t * math.sqrt(total_component.variance)
    low, high = np.clip((probability - distance, probability + distance), 0.0, 1.0)  # keeps NaN
    return Improvement(probability, float(low), float(high))
