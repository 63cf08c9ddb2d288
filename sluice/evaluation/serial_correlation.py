"""Detects serial correlation of rows that are declared independent.

A horizon of 0 declares that rows are independent, and by default each row is a separate block. If
dependent rows are declared independent by mistake, the bounds are too narrow. Such a mistake is
detected by the correlation between the gains of neighbouring rows.
"""

import math

import numpy as np
from numpy.typing import NDArray

_MAX_AUTOCORRELATION_SE = 4.0
"""Autocorrelation of the gains above which rows count as dependent [standard errors]. Independent
rows exceed this limit in one of 30,000 comparisons, and in four of 1,000 if only 9 of 300 rows have
a gain at all (measured). A false detection only makes the comparison inconclusive."""


def lag1_autocorrelation(centred_N: NDArray[np.float64]) -> float:
    """Return the lag-1 autocorrelation of the gains; NaN if it is undefined.

    Args:
        centred_N: Gains (N,) in row order, with the mean of each fold subtracted.
    """
    sum_of_squares = float((centred_N**2).sum())
    if centred_N.size < 2 or not sum_of_squares > 0:
        return math.nan
    return float((centred_N[1:] * centred_N[:-1]).sum() / sum_of_squares)


def is_autocorrelated(centred_N: NDArray[np.float64]) -> bool:
    """Return whether the gains have a significant positive lag-1 autocorrelation.

    A negative correlation does not make the bounds too narrow. The correlation is compared with its
    standard deviation for independent values, ``1 / sqrt(N)``.

    Source:
        Bartlett (1946), Supplement to the Journal of the Royal Statistical Society 8(1).
    """
    return lag1_autocorrelation(centred_N) * math.sqrt(centred_N.size) > _MAX_AUTOCORRELATION_SE
