"""Classifies the rows of a suite: scored, no longer in the data, trained on, or in no test window.

Shape legend: N = rows of the loss table, M = rows of the loss table that are in the suite.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.errors import ContractError
from sluice.evaluation.losses import LossTable
from sluice.evaluation.unseen_members import position_through, row_labels
from sluice.training.members import Member


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowStatus:
    """Rows of a suite by status; each row has exactly one status."""

    scored_M: NDArray[np.int64]
    """Positions of the scored rows in the loss table; a row in several folds has several
    positions."""

    missing_labels: tuple[str, ...]
    """Labels of rows that are no longer in the frame."""

    trained_labels: tuple[str, ...]
    """Labels of rows on which the candidate was trained, which must not be scored."""

    unscored_labels: tuple[str, ...]
    """Labels of rows in the frame that no member has seen and that are in no test window, for
    example rows in a gap between windows."""


def classify_rows(
    labels: Sequence[str],
    losses: LossTable,
    index: pd.Index,
    members: Sequence[Member],
    *,
    horizon_rows: int,
) -> RowStatus:
    """Determine for each row of a suite whether the candidate may be scored on it.

    A member has seen all rows up to ``trained_through`` and, through the targets, the next
    ``horizon_rows`` rows. A row of a test window counts as seen if a member of the window's fold
    has seen it. Any other row of the frame counts as seen if any member has seen it.

    Args:
        labels: Labels of the suite's rows.
        losses: Losses of the candidate on all test rows.
        index: Row labels of the feature frame, sorted.
        members: Members of the candidate.
        horizon_rows: Forecast horizon of the target [rows].

    Raises:
        ContractError: Two rows of the frame have the same label, or the losses belong to another
            frame.
    """
    position_of_label = pd.Series(np.arange(len(index)), index=row_labels(index))
    if not position_of_label.index.is_unique:
        repeated_label = position_of_label.index[position_of_label.index.duplicated()][0]
        raise ContractError(
            f"Row labels must be unique for suites, but the frame has two rows {repeated_label}.",
            fix="Assign a unique label to every row.",
        )
    position_N = position_of_label.index.get_indexer(pd.Index(losses.label_N))
    if (position_N < 0).any():
        raise ContractError(
            "Losses and feature frame must belong to the same table; "
            f"{int((position_N < 0).sum())} scored rows are not in the frame, first "
            f"{losses.label_N[(position_N < 0).argmax()]}.",
            fix="Score the candidate on this frame.",
        )
    last_seen_by_fold = _last_seen_positions(index, members, horizon_rows)
    last_seen_N = np.array([last_seen_by_fold.get(int(fold), -1) for fold in losses.fold_N])
    is_in_suite_N = pd.Index(losses.label_N).isin(labels)
    scored_M = np.flatnonzero(is_in_suite_N & (position_N > last_seen_N))
    scored_labels = set(losses.label_N[scored_M].tolist())
    window_labels = set(losses.label_N[is_in_suite_N].tolist())
    missing_labels, trained_labels, unscored_labels = [], [], []
    for label in labels:
        if label in scored_labels:
            continue
        if label not in position_of_label.index:
            missing_labels.append(label)
        elif label in window_labels or (
            position_of_label[label] <= max(last_seen_by_fold.values(), default=-1)
        ):
            trained_labels.append(label)
        else:
            unscored_labels.append(label)
    return RowStatus(
        scored_M=scored_M.astype(np.int64),
        missing_labels=tuple(missing_labels),
        trained_labels=tuple(trained_labels),
        unscored_labels=tuple(unscored_labels),
    )


def _last_seen_positions(
    index: pd.Index, members: Sequence[Member], horizon_rows: int
) -> dict[int, int]:
    """Return the position of the last row that any member of a fold has seen, by fold id."""
    last_by_fold: dict[int, int] = {}
    for member in members:
        last_seen = position_through(index, member.trained_through) + horizon_rows
        last_by_fold[member.fold_id] = max(last_seen, last_by_fold.get(member.fold_id, -1))
    return last_by_fold
