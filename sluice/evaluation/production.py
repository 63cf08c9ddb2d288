"""Which of production's members may be tested on a fold: one that has not seen its rows."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.errors import ContractError
from sluice.data.folds import Fold
from sluice.training.members import Member


def latest_unseen(
    members: Sequence[Member], index: pd.Index, fold: Fold, *, horizon_rows: int
) -> Member:
    """Return the member trained the furthest that has not seen the fold's test rows.

    A member has seen what ``trained_through`` names and, through the targets, the next
    ``horizon_rows`` rows. That label has to lie before the first test row by more than the
    horizon. Production may have been trained on other folds of an older table: the label is
    looked up in time and need not occur in ``index``.

    Args:
        members: Production's members of one seed, at least one.
        index: Row labels of the current feature frame, sorted.
        fold: Current fold.
        horizon_rows: How many rows ahead a target looks [rows].

    Raises:
        ContractError: Every member has seen the test rows, or a label is not of the index's kind.
    """
    through = [position_through(index, member.trained_through) for member in members]
    # Ties keep the first member; the fold number breaks them, so that their order is free.
    ranked = sorted(zip(through, members, strict=True), key=lambda pair: (pair[0], pair[1].fold_id))
    unseen = [member for at, member in ranked if fold.test.start - at > horizon_rows]
    if not unseen:
        raise ContractError(
            f"Seed {members[0].seed} must have a member trained through more than "
            f"{horizon_rows} rows before fold {fold.fold_id}'s first test row "
            f"{row_labels(index)[fold.test.start]}, and its earliest was trained through "
            f"{ranked[0][1].trained_through}.",
            cause="The folds begin earlier than those it was trained on.",
            fix="Begin the first test window later, or train its settings on these folds "
            "and use that.",
        )
    return unseen[-1]


def row_labels(index: pd.Index) -> NDArray[np.str_]:
    """Return the rows' labels (N,) as text; dates in ISO form, which sorts as time does."""
    if isinstance(index, pd.DatetimeIndex):
        return np.array([time.isoformat() for time in index], np.str_)
    return np.array([str(label) for label in index], np.str_)


def position_through(index: pd.Index, label: str) -> int:
    """Position of the last row at or before ``label``; -1 when all rows come later."""
    try:
        if isinstance(index, pd.DatetimeIndex):
            return int(index.searchsorted(pd.Timestamp(label), side="right")) - 1
        kind = int if pd.api.types.is_integer_dtype(index.dtype) else str
        return int(index.searchsorted(kind(label), side="right")) - 1
    except (TypeError, ValueError) as error:
        raise ContractError(
            f"A member's trained_through must be a label of the frame's {index.dtype} index, got "
            f"{label!r} ({error}).",
            cause="Production was trained on a table with another kind of index or time zone.",
            fix="Give the rows the index that production was trained with.",
        ) from error
