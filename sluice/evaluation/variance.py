"""How sure a mean gain is: variance over dependent rows, variance over seeds, and their sum.

Shape legend: N = rows of the window, n = rows of one fold, S = seeds.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One independent part of the variance of a mean, and how well that part is known."""

    variance: float
    degrees_of_freedom: float


NOTHING = Part(variance=0.0, degrees_of_freedom=math.inf)
UNKNOWN = Part(variance=math.nan, degrees_of_freedom=math.nan)


def choose_block_length(gain_N: NDArray[np.float64], horizon_rows: int) -> int:
    """Return the block length for the whole window [rows].

    The circular-bootstrap optimum that ``arch`` estimates from the rows, but never less than
    ``shortest_block``: a block too short calls dependent rows independent and promotes falsely,
    one too long only costs degrees of freedom.

    Args:
        gain_N: Gains (N,), finite and not constant, each fold centred on its own mean.
        horizon_rows: How many rows ahead a target looks [rows].

    Source:
        Politis & White (2004), Econometric Reviews 23(1); Patton, Politis & White (2009).
    """
    # Imported here: arch takes about a second and Dagster loads every module.
    from arch.bootstrap import optimal_block_length

    with np.errstate(all="ignore"):
        optimum = float(optimal_block_length(gain_N)["circular"].iloc[0])
    shortest = shortest_block(gain_N.size, horizon_rows)
    return max(shortest, math.ceil(optimum)) if math.isfinite(optimum) else shortest


def shortest_block(num_rows: int, horizon_rows: int) -> int:
    """Return the shortest block worth trusting [rows], whatever the rows look like.

    The larger of the cube root of N, the growth rate of the optimum, for dependence too weak to
    be seen; and ``2 * horizon_rows - 1``, because targets that overlap for ``h`` rows are
    correlated by construction: blocks of ``h`` would miss a third of that variance.

    >>> shortest_block(1000, 1), shortest_block(1000, 20)
    (10, 39)
    """
    return max(math.ceil(round(math.cbrt(num_rows), 9)), 2 * horizon_rows - 1)


def circular_block_variance(x_n: NDArray[np.float64], block_length: int) -> float:
    """Return the variance that a circular block bootstrap gives the mean of ``x_n``.

    In closed form: what infinitely many resamples of ``arch``'s ``CircularBlockBootstrap`` tend
    to, including its cut of the last block. A bootstrap's own seed moves the decision by up to
    0.26 standard errors at 399 resamples; this has no seed.

    Args:
        x_n: Values (n,) in time order.
        block_length: Rows of a block, 1 to n [rows].

    Cost:
        O(n) time and memory.

    Source:
        Politis & Romano (1992), "A circular block-resampling procedure for stationary data".
    """
    whole, rest = divmod(x_n.size, block_length)
    centred_n = x_n - x_n.mean()
    total = whole * _mean_square_of_sums(centred_n, block_length)
    if rest:
        total += _mean_square_of_sums(centred_n, rest)
    return total / x_n.size**2


def rows_part(x_n: NDArray[np.float64], block_length: int) -> Part:
    """Return the variance of the mean of one fold's rows, with the bootstrap's two biases mended.

    The circular bootstrap is too small twice over. It centres every block on the fold's own
    mean: divided out, by the factor that is exact on independent rows. And it cuts dependence at
    the block's end: the cut shrinks with 1 / block length, so twice the variance at this length
    less the one at half of it has no such bias to first order. That second step may only raise
    the variance, never lower it. Measured on 4 folds, 1,000 rows, AR(1) at 0.8: the variance is
    19 % too small without it and 2 % with it; false promotions 7.2 % and 5.8 % at 5 %.

    With blocks of one row the result is ``s**2 / n`` on ``n - 1`` degrees of freedom, exactly.
    The degrees of freedom, blocks less one, are those of blocks that do not overlap: overlapping
    ones have more on independent rows, but not on dependent ones (AR(1) at 0.8, 1,000 rows: 28
    from the spread of the estimate, 32 by this rule, 50 by the textbook's 1.5 n / l).

    Args:
        x_n: Values (n,) in time order.
        block_length: Rows of a block [rows].

    Returns:
        ``UNKNOWN`` when the fold holds fewer than two blocks: nothing can be estimated.

    Source:
        Politis & Romano (1995), J. Time Series Analysis 16(1), flat-top estimates; Vats &
        Flegal (2022), Biometrika 109(3), the one-sided use.
    """
    if x_n.size < max(2, 2 * block_length):
        return UNKNOWN
    full = _recentred_variance(x_n, block_length)
    half = _recentred_variance(x_n, max(1, block_length // 2))
    return Part(
        # NaN values make `full` NaN, and `max` then keeps its first argument.
        variance=max(full, 2 * full - half),
        degrees_of_freedom=x_n.size / block_length - 1,
    )


def seeds_part(mean_loss_S: NDArray[np.float64], *, is_deterministic: bool) -> Part:
    """Return the variance of an arm's mean loss that comes from its random seeds.

    Args:
        mean_loss_S: Mean loss of each seed (S,).
        is_deterministic: The arm has no seed at all, so it adds nothing.

    Returns:
        ``UNKNOWN`` for a single seed of a random recipe: one draw says nothing about spread.
    """
    if is_deterministic:
        return NOTHING
    count = mean_loss_S.size
    if count < 2:
        return UNKNOWN
    return Part(
        variance=float(mean_loss_S.var(ddof=1)) / count, degrees_of_freedom=float(count - 1)
    )


def scaled(part: Part, weight: float) -> Part:
    """Return the part of a mean that enters a larger mean with ``weight``."""
    return Part(variance=part.variance * weight**2, degrees_of_freedom=part.degrees_of_freedom)


def pooled(parts: Iterable[Part]) -> Part:
    """Add independent parts; the degrees of freedom are Satterthwaite's.

    >>> one = Part(variance=2.0, degrees_of_freedom=4.0)
    >>> pooled([one, one]).degrees_of_freedom
    8.0
    >>> pooled([one, NOTHING]) == one
    True

    Returns:
        A part whose degrees of freedom are NaN when the total is zero or unknown.

    Source:
        Satterthwaite (1946), Biometrics Bulletin 2(6).
    """
    known = tuple(parts)
    total = math.fsum(part.variance for part in known)
    spread = math.fsum(part.variance**2 / part.degrees_of_freedom for part in known)
    freedom = total**2 / spread if spread > 0 else math.nan
    return Part(variance=total, degrees_of_freedom=freedom)


def _recentred_variance(x_n: NDArray[np.float64], block_length: int) -> float:
    n = x_n.size
    whole, rest = divmod(n, block_length)
    kept = (whole * block_length * (1 - block_length / n) + rest * (1 - rest / n)) / n
    return circular_block_variance(x_n, block_length) / kept


def _mean_square_of_sums(centred_n: NDArray[np.float64], length: int) -> float:
    """Mean over all circular blocks of the squared sum of a block."""
    n = centred_n.size
    running = np.concatenate(
        ([0.0], np.cumsum(np.concatenate((centred_n, centred_n[: length - 1]))))
    )
    sums_n = running[length : length + n] - running[:n]
    return float(np.mean(sums_n**2))
