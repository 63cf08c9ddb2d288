"""Selects a member of a version that has not seen the test rows of a fold."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.errors import ContractError
from sluice.data.folds import Fold
from sluice.training.members import Member


def select_unseen_member(
    members: Sequence[Member], index: pd.Index, fold: Fold, *, horizon_rows: int
) -> Member:
    """Return the member with the most training data that has not seen the fold's test rows.

    A member has seen all rows up to ``trained_through`` and, through the targets, the next
    ``horizon_rows`` rows. Therefore ``trained_through`` must precede the first test row by more
    than the horizon. ``trained_through`` need not be a label in ``index``, because the version may
    have been trained on an older table. It is located by its position in time.

    Args:
        members: Members of one seed, at least one.
        index: Row labels of the current feature frame, sorted.
        fold: Current fold.
        horizon_rows: Forecast horizon of the target [rows].

    Raises:
        ContractError: Every member has seen the test rows, or the type of a label does not match
            the index.
    """
    last_positions = [position_through(index, member.trained_through) for member in members]
    # Members with the same last row are ordered by fold id, so that the result does not depend on
    # the order of the members.
    ranked_members = sorted(
        zip(last_positions, members, strict=True), key=lambda pair: (pair[0], pair[1].fold_id)
    )
    unseen_members = [
        member
        for last_position, member in ranked_members
        if fold.test.start - last_position > horizon_rows
    ]
    if not unseen_members:
        raise ContractError(
            f"Seed {members[0].seed} needs a member whose training ends more than {horizon_rows} "
            f"rows before the first test row of fold {fold.fold_id}, "
            f"{row_labels(index)[fold.test.start]}; the training of its earliest member ends at "
            f"{ranked_members[0][1].trained_through}.",
            cause="The folds start earlier than those on which the version was trained.",
            fix="Start the first test window later, or train the same settings on these folds and "
            "use that model.",
        )
    return unseen_members[-1]


def row_labels(index: pd.Index) -> NDArray[np.str_]:
    """Return the row labels (N,) as text, with dates in ISO format, which sorts in time order."""
    if isinstance(index, pd.DatetimeIndex):
        return np.array([time.isoformat() for time in index], np.str_)
    return np.array([str(label) for label in index], np.str_)


def position_through(index: pd.Index, label: str) -> int:
    """Return the position of the last row at or before ``label``; -1 if all rows are later."""
    try:
        if isinstance(index, pd.DatetimeIndex):
            return int(index.searchsorted(pd.Timestamp(label), side="right")) - 1
        label_type = int if pd.api.types.is_integer_dtype(index.dtype) else str
        return int(index.searchsorted(label_type(label), side="right")) - 1
    except (TypeError, ValueError) as error:
        raise ContractError(
            f"A member's trained_through must be a label for the {index.dtype} index of the frame, "
            f"got {label!r} ({error}).",
            cause="The version was trained on a table with another index type or time zone.",
            fix="Use the same index type and time zone as in its training.",
        ) from error
