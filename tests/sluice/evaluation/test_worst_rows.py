"""The rows on which the candidate is worse are selected and described."""

import numpy as np
import pandas as pd

from sluice.evaluation.worst_rows import describe_worst_rows, find_worst_rows
from tests.sluice.evaluation.loss_samples import make_losses

LOSSES = np.ones((2, 30))


def make_arms(losses_by_row):
    candidate = LOSSES.copy()
    for row, loss in losses_by_row.items():
        candidate[:, row] = loss
    return make_losses(candidate, "candidate"), make_losses(LOSSES, "reference")


def test_rows_are_sorted_by_gain_and_rows_with_a_positive_gain_are_omitted():
    candidate, reference = make_arms({4: 3.0, 20: 9.0, 7: 0.1, 11: np.nan})

    assert find_worst_rows(candidate, reference).tolist() == [20, 4]


def test_at_most_eight_rows_are_selected():
    assert len(find_worst_rows(*make_arms({row: 2.0 for row in range(20)}))) == 8


def test_rows_are_described_by_their_labels():
    candidate, reference = make_arms({4: 3.0, 20: 9.0})
    # In another order than the losses: labels identify the rows, not positions.
    frame = pd.DataFrame(
        {"path": [f"{label}.png" for label in candidate.label_N]}, index=candidate.label_N
    )[::-1]

    descriptions = describe_worst_rows(candidate, reference, frame, "path")

    labels = candidate.label_N[[20, 4]].tolist()
    assert descriptions == {label: f"{label}.png" for label in labels}
    assert list(descriptions) == labels
    assert describe_worst_rows(candidate, reference, frame, None) == {}
