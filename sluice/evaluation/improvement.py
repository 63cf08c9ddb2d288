"""The probability of improvement: how often the candidate is the better one on a row.

Shown beside the gate, never deciding: a model that is better on most rows may still lose more on
the rest than it gains.

Shape legend: S, T = seeds of candidate and reference, N = rows.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from sluice.evaluation.estimate import Arm
from sluice.evaluation.variance import pooled, rows_part, scaled, seeds_part


class Improvement(NamedTuple):
    """A chance in [0, 1] and its one-sided bounds; one half is no difference."""

    probability: float
    low: float
    high: float


def probability_of_improvement(
    candidate: Arm,
    reference: Arm,
    fold_N: NDArray[np.int64],
    *,
    block_length: int,
    alpha: float,
) -> Improvement:
    """Return the chance that a network of the candidate has the lower loss on a row.

    Over all pairs of a candidate's and a reference's seed and all rows; equal losses count half.
    Its variance has the parts the gate's has: over the seeds of either arm (each seed's own
    chance), and over blocks of rows inside each fold. So a row where one arm has no spread adds
    what Brunner and Munzel's test would.

    Args:
        candidate: Losses (S, N).
        reference: Losses on the same rows (T, N).
        fold_N: Fold of each row (N,); within a fold the rows are in time order.
        block_length: Rows of a block [rows].
        alpha: Of each bound.

    Returns:
        NaN for all three when a loss is not finite; NaN bounds when a part of the variance is
        unknown or nothing varies.

    Cost:
        O(S x T x N) time, O(N) memory.

    Source:
        Agarwal et al. (2021), NeurIPS 34; Brunner & Munzel (2000), Biometrical Journal 42(1).
    """
    ours, theirs = candidate.loss_SN, reference.loss_SN
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return Improvement(math.nan, math.nan, math.nan)
    chance_N = np.zeros(fold_N.size)
    chance_ST = np.empty((len(ours), len(theirs)))
    for s, our_N in enumerate(ours):
        for t, their_N in enumerate(theirs):
            won_N = 0.5 * (np.sign(their_N - our_N) + 1)
            chance_N += won_N
            chance_ST[s, t] = won_N.mean()
    chance_N /= chance_ST.size
    whole = pooled(
        (
            seeds_part(chance_ST.mean(axis=1), is_deterministic=candidate.is_deterministic),
            seeds_part(chance_ST.mean(axis=0), is_deterministic=reference.is_deterministic),
            *(
                scaled(rows_part(chance_N[rows_N], block_length), float(rows_N.mean()))
                for rows_N in (fold_N == fold for fold in np.unique(fold_N))
            ),
        )
    )
    probability = float(chance_N.mean())
    reach = float(stdtrit(whole.degrees_of_freedom, 1 - alpha)) * math.sqrt(whole.variance)
    low, high = np.clip((probability - reach, probability + reach), 0.0, 1.0)  # NaN stays NaN
    return Improvement(probability, float(low), float(high))
