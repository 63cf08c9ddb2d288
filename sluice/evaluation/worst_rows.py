"""Selects the rows on which a candidate is worse than its reference."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.evaluation.estimate import ArmLosses, mean_gain
from sluice.evaluation.losses import LossTable
from sluice.evaluation.unseen_members import row_labels
from sluice.findings.row_descriptions import describe_rows

_MAX_ROWS = 8
"""Maximum number of listed rows with a negative gain, beginning with the lowest gain."""


def find_worst_rows(candidate: LossTable, reference: LossTable) -> NDArray[np.int64]:
    """Return the positions of the rows with the lowest negative gains, in the candidate's table.

    A gain is the mean loss of the reference minus the mean loss of the candidate, over seeds.
    """
    aligned = reference.aligned_to(candidate)
    gain_N = mean_gain(ArmLosses.of(candidate), ArmLosses.of(aligned))
    lowest_positions = np.argsort(gain_N, kind="stable")[:_MAX_ROWS]
    return lowest_positions[gain_N[lowest_positions] < 0]


def describe_worst_rows(
    candidate: LossTable, reference: LossTable, frame: pd.DataFrame, column: str | None
) -> dict[str, str]:
    """Return the descriptions of the worst rows by label; empty without a display column.

    Args:
        candidate: Losses of the candidate.
        reference: Losses of the reference.
        frame: Feature frame.
        column: Display column of the workload.
    """
    if column is None or column not in frame.columns:
        return {}
    labels = candidate.label_N[find_worst_rows(candidate, reference)]
    rows = pd.Index(row_labels(frame.index)).get_indexer(pd.Index(labels))
    return dict(zip(map(str, labels), describe_rows(frame, rows, column), strict=True))
