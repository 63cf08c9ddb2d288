"""Sign-flip test of the mean gain, over seeds and blocks of rows.

This secondary test does not affect the decision, because it is exact only without seed variance.

Shape legend: S = seeds, N = rows, B = blocks, K = terms with a random sign, R = resamples.
"""

import math

import numpy as np
from numpy.typing import NDArray

from sluice.evaluation.estimate import ArmLosses, mean_gain

_CHUNK_RESAMPLES = 256
"""Maximum number of resamples that are computed at a time, which limits the memory. A change of
this number changes the order in which random numbers are drawn, and so the p-values."""


def sign_flip_p(
    candidate: ArmLosses,
    reference: ArmLosses,
    fold_N: NDArray[np.int64],
    *,
    block_length: int,
    resamples: int,
    rng: np.random.Generator,
) -> float:
    """Return the one-sided p-value of no gain: the share of resamples with at least this gain.

    Under the null hypothesis, the gain of a block of rows is positive or negative with equal
    probability. The same holds for the deviation of a seed from the mean of its arm. Each resample
    flips the signs of the gains and of the deviations at random. The deviations are scaled by
    sqrt(S / (S - 1)), because their mean was subtracted. A sign for each combination of seed and
    block would wrongly treat the combinations as independent replicates.

    Args:
        candidate: Losses (S, N).
        reference: Losses on the same rows; S may differ.
        fold_N: Fold of each row (N,); no block spans two folds.
        block_length: Block length; the last block of a fold may be shorter [rows].
        resamples: Number of resamples.
        rng: Random generator.

    Returns:
        The p-value; NaN if a loss is not finite.

    Source:
        Romano (1990), J. American Statistical Association 85(411), for the blocks.
    """
    block_B = _block_gains(mean_gain(candidate, reference), fold_N, block_length)
    observed_sum = block_B.sum()
    if not math.isfinite(observed_sum):
        return math.nan
    term_K = np.concatenate((block_B, _deviations(candidate), _deviations(reference)))
    num_extreme, num_remaining = 0, resamples
    # The tolerance is for rounding: sums of the same terms in another order differ in the last
    # bits.
    threshold = observed_sum - 1e-12 * np.abs(term_K).sum()
    while num_remaining:
        chunk_size = min(num_remaining, _CHUNK_RESAMPLES)
        sign_RK = rng.integers(0, 2, size=(chunk_size, term_K.size), dtype=np.int8) * 2.0 - 1.0
        num_extreme += int((sign_RK @ term_K >= threshold).sum())
        num_remaining -= chunk_size
    return (1 + num_extreme) / (1 + resamples)


def _block_gains(
    gain_N: NDArray[np.float64], fold_N: NDArray[np.int64], block_length: int
) -> NDArray[np.float64]:
    """Return the contribution of each block to the mean gain (B,)."""
    fold_block_sums = []
    for fold in np.unique(fold_N):
        gain_n = gain_N[fold_N == fold]
        fold_block_sums.append(np.add.reduceat(gain_n, np.arange(0, gain_n.size, block_length)))
    return np.concatenate(fold_block_sums) / gain_N.size


def _deviations(arm: ArmLosses) -> NDArray[np.float64]:
    """Return each seed's contribution to the deviation of the mean loss (S,).

    The result is empty for fewer than two seeds.
    """
    mean_S = arm.loss_SN.mean(axis=1)
    if arm.is_deterministic or mean_S.size < 2:
        return np.empty(0)
    scale = math.sqrt(mean_S.size / (mean_S.size - 1))
    deviation_S: NDArray[np.float64] = scale * (mean_S - mean_S.mean()) / mean_S.size
    return deviation_S
