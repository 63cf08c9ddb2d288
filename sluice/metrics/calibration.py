"""Is a model right as often as it says? Expected calibration error over bins of equal mass."""

import numpy as np
from numpy.typing import NDArray


def calibration_error(
    confidence_N: NDArray[np.float64], hit_N: NDArray[np.bool_], *, num_bins: int
) -> float:
    """Return the mean gap between confidence and accuracy over bins, weighted by their rows.

    Bins hold equally many rows, not equally wide ranges: a good model has nearly all of its
    confidences above 0.9, where ten bins of equal width see nothing. Equal confidences stay in one
    bin, so the order of the rows does not matter.

    Args:
        confidence_N: Probability of the predicted class (N,), N at least 1.
        hit_N: Whether that class was right (N,).
        num_bins: Bins asked for; with fewer rows or ties there are fewer.

    Assumes:
        Enough rows in a bin: the gap of a perfectly calibrated model is not 0 but about
        ``0.8 * sqrt(p * (1 - p) / rows of a bin)``.

    Source:
        Nixon et al. (2019), "Measuring calibration in deep learning", CVPR workshops: the adaptive
        bins. Guo et al. (2017), "On calibration of modern neural networks", ICML: the sum.
    """
    num_rows = confidence_N.size
    before_N = np.searchsorted(np.sort(confidence_N), confidence_N, side="left")
    bin_N = before_N * num_bins // num_rows
    gap_N = hit_N.astype(np.float64) - confidence_N
    return float(np.abs(np.bincount(bin_N, weights=gap_N)).sum() / num_rows)
