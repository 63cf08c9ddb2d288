"""Do rows that were declared independent look it?

A horizon of 0 declares that rows have no order and share nothing. Then every row is a block of
its own. Rows in time order that were declared so by mistake make a bound that is too narrow, and
they show: gains of neighbours correlate.
"""

import math

import numpy as np
from numpy.typing import NDArray

_TOO_FAR = 4.0
"""Standard errors: independent rows are taken for dependent once in 30,000 comparisons, and in
four of 1,000 where only 9 of 300 rows differ at all (measured); that costs a decision, no more."""


def neighbour_correlation(centred_N: NDArray[np.float64]) -> float:
    """Return the correlation of each row's gain with the next row's; NaN when it has none.

    Args:
        centred_N: Gains (N,) in row order, each fold centred on its own mean.
    """
    square = float((centred_N**2).sum())
    if centred_N.size < 2 or not square > 0:
        return math.nan
    return float((centred_N[1:] * centred_N[:-1]).sum() / square)


def looks_dependent(centred_N: NDArray[np.float64]) -> bool:
    """Return whether gains of neighbours correlate by more than chance explains.

    Only a positive correlation makes a bound too narrow. It is compared with the spread of
    independent values, ``1 / sqrt(N)``.

    Source:
        Bartlett (1946), Supplement to the Journal of the Royal Statistical Society 8(1).
    """
    return neighbour_correlation(centred_N) * math.sqrt(centred_N.size) > _TOO_FAR
