"""Where a suite's rows are now: scored, gone from the data, or trained on.

Shape legend: N = rows of the loss table, M = rows of it that the suite names.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.errors import ContractError
from sluice.evaluation.losses import LossTable
from sluice.evaluation.production import position_through, row_labels
from sluice.training.members import Member


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """Each row of a suite is in exactly one of these."""

    scored_M: NDArray[np.int64]
    """Places in the loss table, in its order; a row of several folds has several."""

    gone: tuple[str, ...]
    """Not in the frame any more."""

    seen: tuple[str, ...]
    """The candidate was trained on them: a result there would be a leak."""

    unscored: tuple[str, ...]
    """In the frame, not trained on and in no test window, as in a gap between windows."""


def place_rows(
    labels: Sequence[str],
    losses: LossTable,
    index: pd.Index,
    members: Sequence[Member],
    *,
    horizon_rows: int,
) -> Placement:
    """Say for each row of a suite whether the candidate may be measured on it.

    A member has seen what ``trained_through`` names and everything before, and, through the
    targets, the next ``horizon_rows`` rows. A row of a test window counts as seen when a member of
    that fold has; any other row of the frame when any member has.

    Args:
        labels: Rows of the suite.
        losses: The candidate's, of all test rows.
        index: Row labels of the feature frame, sorted.
        members: The candidate's.
        horizon_rows: How many rows ahead a target looks [rows].

    Raises:
        ContractError: Two rows of the frame have one label, or the losses are of another frame.
    """
    position = pd.Series(np.arange(len(index)), index=row_labels(index))
    if not position.index.is_unique:
        twice = position.index[position.index.duplicated()][0]
        raise ContractError(
            f"Suites name rows by label, and the frame has two rows {twice}.",
            fix="Give every row a label of its own.",
        )
    at_N = position.index.get_indexer(pd.Index(losses.label_N))
    if (at_N < 0).any():
        raise ContractError(
            f"Losses and feature frame must be of one table; {int((at_N < 0).sum())} scored rows "
            f"are not in the frame, first {losses.label_N[(at_N < 0).argmax()]}.",
            fix="Score the candidate on this frame.",
        )
    last_seen = _last_seen(index, members, horizon_rows)
    limit_N = np.array([last_seen.get(int(fold), -1) for fold in losses.fold_N])
    wanted_N = pd.Index(losses.label_N).isin(labels)
    scored_M = np.flatnonzero(wanted_N & (at_N > limit_N))
    scored = set(losses.label_N[scored_M].tolist())
    in_window = set(losses.label_N[wanted_N].tolist())
    gone, seen, unscored = [], [], []
    for label in labels:
        if label in scored:
            continue
        if label not in position.index:
            gone.append(label)
        elif label in in_window or position[label] <= max(last_seen.values(), default=-1):
            seen.append(label)
        else:
            unscored.append(label)
    return Placement(
        scored_M=scored_M.astype(np.int64),
        gone=tuple(gone),
        seen=tuple(seen),
        unscored=tuple(unscored),
    )


def _last_seen(index: pd.Index, members: Sequence[Member], horizon_rows: int) -> dict[int, int]:
    """Return by fold the position of the last row that a member of it has seen."""
    found: dict[int, int] = {}
    for member in members:
        at = position_through(index, member.trained_through) + horizon_rows
        found[member.fold_id] = max(at, found.get(member.fold_id, -1))
    return found
