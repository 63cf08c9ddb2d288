"""Which rows of a growing table are judged next: windows that share no row, the newest first."""

from dataclasses import dataclass

import pandas as pd

from sluice.config.drift_settings import DriftSettings
from sluice.data.folds import RowRange
from sluice.evaluation.production import position_through


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """There is nothing to judge yet, and nothing is wrong."""

    reason: str
    """A sentence with what is there and what is needed."""


def next_window(
    index: pd.Index, *, after: str, is_first: bool, settings: DriftSettings
) -> RowRange | Waiting:
    """Return the rows to judge, or why there are none yet.

    A window has ``window_rows`` rows, the newest. The first one may be smaller, down to
    ``min_rows``: waiting for it would leave a new version unwatched.

    Args:
        index: Row labels in time order.
        after: Label of the last row that was judged, or that the version was made with; it need
            not occur.
        is_first: Whether nothing was judged yet.
        settings: Sizes of windows.

    Raises:
        ContractError: The label is not of the index's kind.
    """
    begin = position_through(index, after) + 1
    fresh = len(index) - begin
    needed = settings.min_rows if is_first else settings.window_rows
    if fresh <= 0:
        return Waiting(reason=f"No new rows yet after {after}; a window needs {needed}.")
    if fresh < needed:
        return Waiting(reason=f"{fresh} new rows after {after}; a window needs {needed}.")
    return RowRange(start=len(index) - min(fresh, settings.window_rows), stop=len(index))
