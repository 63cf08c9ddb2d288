"""Selects the next window of a growing table; windows do not overlap."""

from dataclasses import dataclass

import pandas as pd

from sluice.base.pluralize import pluralize
from sluice.config.drift_settings import DriftSettings
from sluice.data.folds import RowRange
from sluice.evaluation.unseen_members import position_through


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Result if there are too few new rows for a window, which is not a problem."""

    reason: str
    """Sentence with the number of new rows and the number of rows that a window needs."""


def next_window(
    index: pd.Index, *, after: str, is_first: bool, settings: DriftSettings
) -> RowRange | Waiting:
    """Return the rows of the next window, or ``Waiting`` if there are too few.

    A window consists of the newest ``window_rows`` rows. The first window may have only
    ``min_rows`` rows, so that the monitoring of a new version starts early.

    Args:
        index: Index labels of the rows in time order.
        after: Index label of the last row that belongs to an evaluated window or from which the
            version was created. It need not occur in ``index``.
        is_first: Whether no window was evaluated yet.
        settings: Window sizes.

    Raises:
        ContractError: The type of the label does not match the index.
    """
    first_new = position_through(index, after) + 1
    num_new = len(index) - first_new
    required_rows = settings.min_rows if is_first else settings.window_rows
    if num_new <= 0:
        return Waiting(reason=f"No new rows yet after {after}; a window needs {required_rows}.")
    if num_new < required_rows:
        return Waiting(
            reason=f"{pluralize(num_new, 'new row')} after {after}; a window needs {required_rows}."
        )
    return RowRange(start=len(index) - min(num_new, settings.window_rows), stop=len(index))
