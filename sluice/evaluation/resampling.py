"""Two-way percentile bootstrap interval: seeds and blocks of rows are resampled jointly.

This secondary test does not affect the decision, because it is too liberal: with 5 seeds, its false
positive rate is about 10 % at a nominal 5 %. The gate's Student bound keeps the nominal rate.

Shape legend: S = seeds of both arms, N = rows, n = rows of one fold, B = blocks, R = resamples.
"""

import numpy as np
from numpy.typing import NDArray

from sluice.evaluation.estimate import ArmLosses


def two_way_interval(
    candidate: ArmLosses,
    reference: ArmLosses,
    fold_N: NDArray[np.int64],
    *,
    block_length: int,
    alpha: float,
    resamples: int,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Return the one-sided lower and upper percentile bounds of the mean gain, each at ``alpha``.

    Both bounds are NaN if a loss is not finite.
    """
    gain_R = resampled_gains(
        candidate, reference, fold_N, block_length=block_length, resamples=resamples, rng=rng
    )
    low, high = np.quantile(gain_R, (alpha, 1 - alpha))
    return float(low), float(high)


def resampled_gains(
    candidate: ArmLosses,
    reference: ArmLosses,
    fold_N: NDArray[np.int64],
    *,
    block_length: int,
    resamples: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Return the mean gain of each resample (R,).

    A resample draws the seeds of each arm with replacement and, inside each fold, circular blocks
    of rows. The drawn rows are the same for both arms and all seeds. The sums of all blocks are
    computed once, so a resample adds N / block_length numbers for each seed instead of N.

    Args:
        candidate: Losses (S, N).
        reference: Losses on the same rows; S may differ.
        fold_N: Fold of each row (N,); within a fold the rows are in time order.
        block_length: Block length [rows]. The only block of a shorter fold is the whole fold.
        resamples: Number of resamples.
        rng: Random generator.

    Cost:
        O(R x S x N / block_length) time, O(S x N) memory. 2,000 resamples of 2 x 8 seeds and
        100,000 rows in blocks of 47 take a third of a second.

    Source:
        Politis & Romano (1992), circular blocks; Owen (2007), Annals of Applied Statistics 1(2),
        two-way resampling.
    """
    loss_SN = np.concatenate((reference.loss_SN, candidate.loss_SN))
    sum_RS = np.zeros((resamples, loss_SN.shape[0]))
    for fold in np.unique(fold_N):
        sum_RS += _sum_drawn_rows(loss_SN[:, fold_N == fold], block_length, resamples, rng)
    num_reference_seeds = reference.loss_SN.shape[0]
    reference_R = _mean_of_drawn_seeds(sum_RS[:, :num_reference_seeds], rng)
    candidate_R = _mean_of_drawn_seeds(sum_RS[:, num_reference_seeds:], rng)
    gain_R: NDArray[np.float64] = reference_R - candidate_R
    return gain_R / fold_N.size


def _sum_drawn_rows(
    loss_Sn: NDArray[np.float64], block_length: int, resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the sum (R, S) of the losses of the rows drawn in one fold."""
    n = loss_Sn.shape[1]
    length = min(block_length, n)
    num_whole_blocks, last_length = divmod(n, length)
    sums_nS = _circular_sums(loss_Sn, length)
    last_sums_nS = _circular_sums(loss_Sn, last_length) if last_length else None
    sum_RS = np.empty((resamples, loss_Sn.shape[0]))
    drawn_sums_BS, ones_B = (
        np.empty((num_whole_blocks, loss_Sn.shape[0])),
        np.ones(num_whole_blocks),
    )
    for sum_S in sum_RS:
        # Gathering in place and summing with BLAS is ten times as fast as sums_nS[...].sum(axis=0).
        # With the default mode, np.take would copy its output.
        starts = rng.integers(n, size=num_whole_blocks)
        np.take(sums_nS, starts, axis=0, out=drawn_sums_BS, mode="clip")
        np.matmul(ones_B, drawn_sums_BS, out=sum_S)
        if last_sums_nS is not None:
            sum_S += last_sums_nS[rng.integers(n)]
    return sum_RS


def _circular_sums(loss_Sn: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """Return the sum (n, S) of the block that starts at each row and wraps around the end."""
    num_seeds, n = loss_Sn.shape
    cumulative = np.zeros((n + length, num_seeds))
    np.cumsum(np.concatenate((loss_Sn, loss_Sn[:, : length - 1]), axis=1).T, 0, out=cumulative[1:])
    return cumulative[length:] - cumulative[:n]


def _mean_of_drawn_seeds(
    sum_RS: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the mean (R,) over seeds that are drawn with replacement in each resample."""
    num_seeds = sum_RS.shape[1]
    drawn_seed_RS = rng.integers(num_seeds, size=sum_RS.shape)
    mean_R: NDArray[np.float64] = np.take_along_axis(sum_RS, drawn_seed_RS, axis=1).mean(axis=1)
    return mean_R
