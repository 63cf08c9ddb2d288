"""Computes the expected calibration error over bins with equal numbers of rows."""

import numpy as np
from numpy.typing import NDArray


def calibration_error(
    confidence_N: NDArray[np.float64], is_correct_N: NDArray[np.bool_], *, num_bins: int
) -> float:
    """Return the mean absolute gap between confidence and accuracy, weighted by rows per bin.

    Bins have equal numbers of rows instead of equal widths. The reason is that nearly all
    confidences of a good model are above 0.9, so most of ten bins of equal width would be empty.
    Equal confidences are in the same bin, so the order of the rows does not matter.

    Args:
        confidence_N: Probability of the predicted class (N,), N at least 1.
        is_correct_N: Whether the predicted class is correct (N,).
        num_bins: Requested number of bins; there are fewer if there are fewer rows or equal
            confidences.

    Assumes:
        There are enough rows per bin. Even for a perfectly calibrated model, the gap of a bin with
        n rows and accuracy p is not 0, but about ``0.8 * sqrt(p * (1 - p) / n)``.

    Source:
        Nixon et al. (2019), "Measuring calibration in deep learning", CVPR workshops: adaptive
        bins. Guo et al. (2017), "On calibration of modern neural networks", ICML: definition.
    """
    num_rows = confidence_N.size
    # Number of rows with a lower confidence.
    rank_N = np.searchsorted(np.sort(confidence_N), confidence_N, side="left")
    bin_N = rank_N * num_bins // num_rows
    gap_N = is_correct_N.astype(np.float64) - confidence_N
    return float(np.abs(np.bincount(bin_N, weights=gap_N)).sum() / num_rows)
