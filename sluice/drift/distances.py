"""Distances between the cell shares of a window and the cell shares of the reference.

Each distance takes the shares of the window (..., G), which sum to 1 over the cells, and the shares
of the reference (G,). It returns one number for each window. One call evaluates a window or
thousands of resampled windows.

Shape legend: W = windows, any number of leading dimensions; G = cells, B = bins of several cells.
"""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def population_stability(
    share_WG: FloatArray, reference_G: FloatArray, bin_G: NDArray[np.int64], num_rows: float
) -> FloatArray:
    """Return the population stability index, with half a row added to every bin of both samples.

    Its expected value without drift is about (bins - 1) / rows, so a fixed threshold such as 0.25
    does not suit windows of different sizes.

    Args:
        share_WG: Cell shares of the window.
        reference_G: Cell shares of the reference.
        bin_G: Bin of each cell, from 0.
        num_rows: Rows of the window; half a row is 0.5 / num_rows [rows].

    Source:
        Yurdakul & Naranjo (2020), J. Risk Model Validation 14(4), on its distribution.
    """
    is_in_bin_GB = np.eye(int(bin_G.max()) + 1)[bin_G]
    half_row = 0.5 / num_rows
    window_WB = np.maximum(share_WG @ is_in_bin_GB, 0.0) + half_row
    reference_B = reference_G @ is_in_bin_GB + half_row
    index: FloatArray = ((window_WB - reference_B) * np.log(window_WB / reference_B)).sum(axis=-1)
    return index


def kolmogorov_smirnov(share_WG: FloatArray, reference_G: FloatArray) -> FloatArray:
    """Return the Kolmogorov-Smirnov distance, evaluated at the edges of the cells [rate]."""
    gap: FloatArray = np.abs(np.cumsum(share_WG - reference_G, axis=-1)).max(axis=-1)
    return gap


def wasserstein(
    share_WG: FloatArray, reference_G: FloatArray, position_G: FloatArray
) -> FloatArray:
    """Return the Wasserstein distance of cells at these positions [units of the positions]."""
    gap_WG = np.abs(np.cumsum(share_WG - reference_G, axis=-1))[..., :-1]
    distance: FloatArray = gap_WG @ np.diff(position_G)
    return distance


def chi_square(share_WG: FloatArray, reference_G: FloatArray, num_rows: float) -> FloatArray:
    """Return Pearson's chi-square statistic over the cells that are not empty in the reference.

    Its null distribution is calibrated by resampling, so small expected counts are no problem.
    """
    is_filled_G = reference_G > 0
    squared_change_WG = (share_WG[..., is_filled_G] - reference_G[is_filled_G]) ** 2
    statistic: FloatArray = num_rows * (squared_change_WG / reference_G[is_filled_G]).sum(axis=-1)
    return statistic
