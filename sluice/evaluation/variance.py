"""Estimates the variance of a mean gain: its components due to rows and to seeds, and their sum.

Shape legend: N = rows of the window, n = rows of one fold, S = seeds.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceComponent:
    """One independent component of the variance of a mean, with its degrees of freedom."""

    variance: float
    degrees_of_freedom: float


NO_VARIANCE = VarianceComponent(variance=0.0, degrees_of_freedom=math.inf)
"""Component of something that is not random."""
UNKNOWN_VARIANCE = VarianceComponent(variance=math.nan, degrees_of_freedom=math.nan)
"""Component that cannot be estimated; it makes every sum NaN."""


def choose_block_length(gain_N: NDArray[np.float64], horizon_rows: int) -> int:
    """Return the block length for the whole window [rows].

    This is the optimum for the circular bootstrap that ``arch`` estimates, but not less than
    ``shortest_block``. Blocks that are too short underestimate the variance of dependent rows and
    cause false promotions; blocks that are too long only cost degrees of freedom.

    Args:
        gain_N: Gains (N,), finite and not constant, with the mean of each fold subtracted.
        horizon_rows: Forecast horizon of the target [rows].

    Source:
        Politis & White (2004), Econometric Reviews 23(1); Patton, Politis & White (2009).
    """
    # Imported here, because arch takes about a second and Dagster loads every module.
    from arch.bootstrap import optimal_block_length

    with np.errstate(all="ignore"):
        optimum = float(optimal_block_length(gain_N)["circular"].iloc[0])
    shortest = shortest_block(gain_N.size, horizon_rows)
    return max(shortest, math.ceil(optimum)) if math.isfinite(optimum) else shortest


def shortest_block(num_rows: int, horizon_rows: int) -> int:
    """Return the minimum block length, independent of the observed dependence [rows].

    This is the larger of two numbers. The first is the cube root of N, because the optimal length
    grows at this rate; it covers dependence that is too weak to be estimated. The second is
    ``2 * horizon_rows - 1``, because targets that overlap for ``h`` rows are correlated by
    construction, and blocks of ``h`` rows would miss a third of the variance that the overlap
    causes.

    >>> shortest_block(1000, 1), shortest_block(1000, 20)
    (10, 39)
    """
    return max(math.ceil(round(math.cbrt(num_rows), 9)), 2 * horizon_rows - 1)


def circular_block_variance(x_n: NDArray[np.float64], block_length: int) -> float:
    """Return the circular block bootstrap variance of the mean of ``x_n``.

    The variance is computed in closed form, as the limit of infinitely many resamples of ``arch``'s
    ``CircularBlockBootstrap``, including its shorter last block. The result does not depend on a
    seed. With 399 resamples, the seed of a bootstrap would change the confidence bounds of the mean
    gain by up to 0.26 standard errors.

    Args:
        x_n: Values (n,) in time order.
        block_length: Block length, 1 to n [rows].

    Cost:
        O(n) time and memory.

    Source:
        Politis & Romano (1992), "A circular block-resampling procedure for stationary data".
    """
    num_whole_blocks, last_length = divmod(x_n.size, block_length)
    centred_n = x_n - x_n.mean()
    sum_of_squares = num_whole_blocks * _mean_square_of_sums(centred_n, block_length)
    if last_length:
        sum_of_squares += _mean_square_of_sums(centred_n, last_length)
    return sum_of_squares / x_n.size**2


def rows_component(x_n: NDArray[np.float64], block_length: int) -> VarianceComponent:
    """Return the variance of the mean of one fold's rows, corrected for two bootstrap biases.

    The circular bootstrap underestimates the variance for two reasons:

    1. It centres every block on the mean of the fold. The correction is a factor that is exact for
       independent rows.
    2. It ignores the dependence across the ends of blocks. The resulting bias is proportional to
       1 / block length. To first order, twice the variance at this length minus the variance at
       half of this length is therefore unbiased. This correction is used only if it increases the
       variance.
       Measured on 4 folds, 1,000 rows, AR(1) at 0.8: without this correction, the variance is 19 %
       too small, and the rate of false promotions at a nominal 5 % is 7.2 %. With this correction,
       the variance is 2 % too small, and the rate is 5.8 %.

    With blocks of one row the result is exactly ``s**2 / n`` with ``n - 1`` degrees of freedom.
    The degrees of freedom are the number of non-overlapping blocks minus one. Overlapping blocks
    have more degrees of freedom if rows are independent, but not if they are dependent. For AR(1)
    at 0.8 and 1,000 rows, the spread of simulated estimates corresponds to 28 degrees of freedom.
    This rule gives 32, and the textbook's 1.5 n / block_length gives 50.

    Args:
        x_n: Values (n,) in time order.
        block_length: Block length [rows].

    Returns:
        The component; ``UNKNOWN_VARIANCE`` if the fold has fewer than two blocks or two rows.

    Source:
        Politis & Romano (1995), J. Time Series Analysis 16(1), flat-top estimates; Vats &
        Flegal (2022), Biometrika 109(3), the one-sided use.
    """
    if x_n.size < max(2, 2 * block_length):
        return UNKNOWN_VARIANCE
    full_length_variance = _recentred_variance(x_n, block_length)
    half_length_variance = _recentred_variance(x_n, max(1, block_length // 2))
    return VarianceComponent(
        # If the first argument of ``max`` is NaN, ``max`` returns NaN.
        variance=max(full_length_variance, 2 * full_length_variance - half_length_variance),
        degrees_of_freedom=x_n.size / block_length - 1,
    )


def seeds_component(
    mean_loss_S: NDArray[np.float64], *, is_deterministic: bool
) -> VarianceComponent:
    """Return the variance component of an arm's mean loss due to its random seeds.

    Args:
        mean_loss_S: Mean loss of each seed (S,).
        is_deterministic: Whether the arm has no seeds; its component is then zero.

    Returns:
        The component; ``UNKNOWN_VARIANCE`` for a single seed.
    """
    if is_deterministic:
        return NO_VARIANCE
    num_seeds = mean_loss_S.size
    if num_seeds < 2:
        return UNKNOWN_VARIANCE
    return VarianceComponent(
        variance=float(mean_loss_S.var(ddof=1)) / num_seeds, degrees_of_freedom=float(num_seeds - 1)
    )


def scale_component(component: VarianceComponent, weight: float) -> VarianceComponent:
    """Return the variance component of a mean that is multiplied by ``weight``."""
    return VarianceComponent(
        variance=component.variance * weight**2,
        degrees_of_freedom=component.degrees_of_freedom,
    )


def add_components(components: Iterable[VarianceComponent]) -> VarianceComponent:
    """Add independent components, with Satterthwaite's degrees of freedom.

    >>> one = VarianceComponent(variance=2.0, degrees_of_freedom=4.0)
    >>> add_components([one, one]).degrees_of_freedom
    8.0
    >>> add_components([one, NO_VARIANCE]) == one
    True

    Returns:
        The sum of the components; its degrees of freedom are NaN if the variance is zero or
        unknown.

    Source:
        Satterthwaite (1946), Biometrics Bulletin 2(6).
    """
    addends = tuple(components)
    total_variance = math.fsum(component.variance for component in addends)
    denominator = math.fsum(
        component.variance**2 / component.degrees_of_freedom for component in addends
    )
    degrees_of_freedom = total_variance**2 / denominator if denominator > 0 else math.nan
    return VarianceComponent(variance=total_variance, degrees_of_freedom=degrees_of_freedom)


def _recentred_variance(x_n: NDArray[np.float64], block_length: int) -> float:
    """Return the circular block variance, corrected for the centring on the fold's mean."""
    n = x_n.size
    num_whole_blocks, last_length = divmod(n, block_length)
    # Share of the variance of independent rows that remains after centring.
    num_whole_rows = num_whole_blocks * block_length
    remaining_share = (
        num_whole_rows * (1 - block_length / n) + last_length * (1 - last_length / n)
    ) / n
    return circular_block_variance(x_n, block_length) / remaining_share


def _mean_square_of_sums(centred_n: NDArray[np.float64], length: int) -> float:
    """Return the mean over all circular blocks of the squared sum of a block."""
    n = centred_n.size
    cumulative = np.concatenate(
        ([0.0], np.cumsum(np.concatenate((centred_n, centred_n[: length - 1]))))
    )
    sums_n = cumulative[length : length + n] - cumulative[:n]
    return float(np.mean(sums_n**2))
