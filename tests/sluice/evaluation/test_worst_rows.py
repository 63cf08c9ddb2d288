"""The rows on which the candidate is worse are selected and described."""

import numpy as np
import pandas as pd

from sluice.evaluation.worst_rows import describe_worst_rows, find_worst_rows
from tests.sluice.evaluation.loss_samples import table

LOSSES = np.ones((2, 30))


def arms(losses_by_row):
    candidate = LOSSES.copy()
    for row, loss in losses_by_row.items():
        candidate[:, row] = loss
    return table(candidate, "candidate"), table(LOSSES, "reference")


def test_the_lowest_gains_come_first_and_gains_are_left_out():
    candidate, reference = arms({4: 3.0, 20: 9.0, 7: 0.1, 11: np.nan})

    assert find_worst_rows(candidate, reference).tolist() == [20, 4]


def test_at_most_eight_rows_are_selected():
    assert len(find_worst_rows(*arms({row: 2.0 for row in range(20)}))) == 8


def test_rows_are_described_by_their_labels():
    candidate, reference = arms({4: 3.0, 20: 9.0})
    # In another order than the losses: labels identify the rows, not positions.
    frame = pd.DataFrame(
        {"path": [f"{label}.png" for label in candidate.label_N]}, index=candidate.label_N
    )[::-1]

    described = describe_worst_rows(candidate, reference, frame, "path")

    labels = candidate.label_N[[20, 4]].tolist()
    assert described == {label: f"{label}.png" for label in labels}
    assert list(described) == labels
    assert describe_worst_rows(candidate, reference, frame, None) == {}
