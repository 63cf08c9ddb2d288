"""The sign-flip p-value of the mean gain, over seeds and blocks of rows.

Shown beside the gate, never deciding: exact only where seeds add nothing.

Shape legend: S = seeds, N = rows, B = blocks, R = resamples.
"""

import math

import numpy as np
from numpy.typing import NDArray

from sluice.evaluation.estimate import Arm, mean_gain

_CHUNK = 256
"""Resamples at a time: bounds memory, decides nothing but the order of the draws."""


def sign_flip_p(
    candidate: Arm,
    reference: Arm,
    fold_N: NDArray[np.int64],
    *,
    block_length: int,
    resamples: int,
    rng: np.random.Generator,
) -> float:
    """Return the one-sided p-value of no gain: how often random signs give as much.

    Without a gain, the gain of a block of rows is as likely to have the other sign, and so is the
    deviation of a seed from its arm's mean. Each resample flips both: the blocks' gains as they
    are, the seeds' deviations widened by sqrt(S / (S - 1)), because their mean was taken out.
    Flipping seeds x blocks as one would treat them as replicates.

    Args:
        candidate: Losses (S, N).
        reference: Losses on the same rows; S may differ.
        fold_N: Fold of each row (N,); no block spans two folds.
        block_length: Rows of a block; the last one of a fold is shorter [rows].
        resamples: How many flips.
        rng: Draws them.

    Returns:
        NaN when a loss is not finite.

    Source:
        Romano (1990), J. American Statistical Association 85(411), for the blocks.
    """
    block_B = _block_gains(mean_gain(candidate, reference), fold_N, block_length)
    observed = block_B.sum()
    if not math.isfinite(observed):
        return math.nan
    term_K = np.concatenate((block_B, _deviations(candidate), _deviations(reference)))
    as_much, left = 0, resamples
    # Sums of the same terms in another order differ in the last bits.
    reached = observed - 1e-12 * np.abs(term_K).sum()
    while left:
        size = min(left, _CHUNK)
        sign_RK = rng.integers(0, 2, size=(size, term_K.size), dtype=np.int8) * 2.0 - 1.0
        as_much += int((sign_RK @ term_K >= reached).sum())
        left -= size
    return (1 + as_much) / (1 + resamples)


def _block_gains(
    gain_N: NDArray[np.float64], fold_N: NDArray[np.int64], block_length: int
) -> NDArray[np.float64]:
    """Return what each block adds to the mean gain (B,)."""
    parts = []
    for fold in np.unique(fold_N):
        gain_n = gain_N[fold_N == fold]
        parts.append(np.add.reduceat(gain_n, np.arange(0, gain_n.size, block_length)))
    return np.concatenate(parts) / gain_N.size


def _deviations(arm: Arm) -> NDArray[np.float64]:
    """Return what each seed's deviation adds to its arm's mean loss (S,); nothing without seeds."""
    mean_S = arm.loss_SN.mean(axis=1)
    if arm.is_deterministic or mean_S.size < 2:
        return np.empty(0)
    widened = math.sqrt(mean_S.size / (mean_S.size - 1))
    deviation_S: NDArray[np.float64] = widened * (mean_S - mean_S.mean()) / mean_S.size
    return deviation_S
