"""How far the shares of cells in a window lie from those of the reference.

Each distance takes shares (..., G) of the window that sum to 1 over the cells, and those of the
reference (G,), and returns one number for each leading index: the same lines judge a window and
thousands of resampled ones.

Shape legend: G = cells, B = bins of several cells.
"""

import numpy as np
from numpy.typing import NDArray

Shares = NDArray[np.float64]


def population_stability(
    share_WG: Shares, reference_G: Shares, bin_G: NDArray[np.int64], num_rows: float
) -> Shares:
    """Return the population stability index, half a row added to every bin of both sides.

    Its size without any drift is about (bins - 1) / rows, so no fixed threshold such as 0.25
    suits windows of different size.

    Args:
        share_WG: Of the window.
        reference_G: Of the reference.
        bin_G: Bin of each cell, counted from 0.
        num_rows: Of the window: half a row is half of 1 / num_rows [rows].

    Source:
        Yurdakul & Naranjo (2020), J. Risk Model Validation 14(4), its distribution.
    """
    joined_GB = np.eye(int(bin_G.max()) + 1)[bin_G]
    half = 0.5 / num_rows
    window_WB = np.maximum(share_WG @ joined_GB, 0.0) + half
    reference_B = reference_G @ joined_GB + half
    index: Shares = ((window_WB - reference_B) * np.log(window_WB / reference_B)).sum(axis=-1)
    return index


def kolmogorov_smirnov(share_WG: Shares, reference_G: Shares) -> Shares:
    """Return the largest gap between the distribution functions, over the cells' edges [rate]."""
    gap: Shares = np.abs(np.cumsum(share_WG - reference_G, axis=-1)).max(axis=-1)
    return gap


def wasserstein(share_WG: Shares, reference_G: Shares, at_G: Shares) -> Shares:
    """Return the mean distance that mass has to move, cells taken at ``at_G`` [units of it]."""
    gap_WG = np.abs(np.cumsum(share_WG - reference_G, axis=-1))[..., :-1]
    moved: Shares = gap_WG @ np.diff(at_G)
    return moved


def chi_square(share_WG: Shares, reference_G: Shares, num_rows: float) -> Shares:
    """Return Pearson's statistic over the cells that the reference fills.

    Its distribution is calibrated, not looked up, so small expected counts do no harm.
    """
    filled = reference_G > 0
    moved_WG = (share_WG[..., filled] - reference_G[filled]) ** 2
    statistic: Shares = num_rows * (moved_WG / reference_G[filled]).sum(axis=-1)
    return statistic
