"""Plot of the embeddings of a window and of the reference: their first two principal components.

Shape legend: N = rows, E = width of an embedding.
"""

import numpy as np
from numpy.typing import NDArray

from sluice.drift.plots import DRIFT_COLOUR
from sluice.reports.figures import INK, MUTED, VALIDATION, as_png, new_figure, set_headline


def embeddings_png(
    reference_NE: NDArray[np.float64], window_NE: NDArray[np.float64], *, has_drifted: bool
) -> bytes:
    """Plot both samples in the plane in which all rows together vary most."""
    both_NE = np.concatenate([reference_NE, window_NE])
    centred_NE = both_NE - both_NE.mean(axis=0)
    _, _, axis_EE = np.linalg.svd(centred_NE, full_matrices=False)
    score_N2 = centred_NE @ axis_EE[:2].T
    if score_N2.shape[1] < 2:  # an embedding of one number
        score_N2 = np.pad(score_N2, ((0, 0), (0, 1)))
    figure, axes = new_figure(height_in=4.2)
    colour = DRIFT_COLOUR if has_drifted else VALIDATION
    num_reference = len(reference_NE)
    for part_N2, label, shade in (
        (score_N2[:num_reference], "held-out rows", MUTED),
        (score_N2[num_reference:], "requests", colour),
    ):
        axes.scatter(
            part_N2[:, 0], part_N2[:, 1], s=12, color=shade, alpha=0.55, linewidths=0, label=label
        )
    axes.legend(loc="best", frameon=False, fontsize=8.5)
    axes.set_xlabel("first principal component")
    axes.set_ylabel("second principal component")
    set_headline(axes, "Embedding of the network", "one point for each row", colour=INK)
    return as_png(figure)
