"""Tables whose later rows are changed while every earlier row stays as it is."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_Positions = NDArray[np.int64]

_MOST_GAPS = 3
_SPARE_ROWS = 8
"""Later rows that stay at least, beyond those a target needs [rows]."""


def row_order(index: pd.Index) -> _Positions:
    """Return the row positions in time order: by label when these are times, else as they stand."""
    if isinstance(index, pd.DatetimeIndex) and not index.is_monotonic_increasing:
        return np.argsort(index.to_numpy(), kind="stable")
    return np.arange(len(index))


def cut_places(
    raw: pd.DataFrame, whole: pd.DataFrame, order: _Positions, shares: tuple[float, ...]
) -> tuple[int, ...]:
    """Return where the future begins, as places in ``order``, each once, none at an end.

    Args:
        raw: Raw rows.
        whole: Their features.
        order: From ``row_order``.
        shares: Cuts as shares of the rows.
    """
    label = raw.index[order]
    kept = np.flatnonzero(label.isin(whole.index))
    wanted = [int(len(raw) * share) for share in shares]
    if kept.size > 1:
        # After the first row of the features, and before their last: what is filled at the ends
        # of a table shows nowhere else. Two rows must be left to change places.
        wanted += [int(kept[0]) + 1, min(int(kept[-1]), len(raw) - 2)]
    wanted += list(_after_gaps(raw, order, kept))
    return tuple(dict.fromkeys(cut for cut in wanted if 0 < cut < len(raw) - 1))


def later_rows_changed(
    raw: pd.DataFrame,
    whole: pd.DataFrame,
    order: _Positions,
    *,
    cut: int,
    kept_share: float,
    rng: np.random.Generator,
) -> tuple[pd.DataFrame, pd.Index]:
    """Return a table whose rows after ``cut`` are others, and the labels only found before it.

    Args:
        raw: Raw rows.
        whole: Their features; what they lack at the end says how far targets look.
        order: From ``row_order``.
        cut: Place in ``order`` of the first row that changes.
        kept_share: Share of the later rows that stay.
        rng: Draws the new order.
    """
    early, late = order[:cut], order[cut:]
    lost = len(raw) - 1 - int(np.flatnonzero(raw.index[order].isin(whole.index)).max(initial=0))
    slots = late[: max(int(len(late) * kept_share), lost + _SPARE_ROWS)]
    # One cycle through all of them: no row keeps its place.
    cycle = rng.permutation(late)
    source = np.arange(len(raw))
    source[cycle] = np.roll(cycle, 1)
    rows = np.sort(np.concatenate([early, slots]))
    known = raw.index[early].unique()
    if not raw.index.is_unique:  # rows of one moment may see each other
        known = known[~known.isin(raw.index[late])]
    return raw.iloc[source[rows]].set_axis(raw.index[rows]), known


def _after_gaps(raw: pd.DataFrame, order: _Positions, kept: _Positions) -> Iterator[int]:
    """Yield a place right after an empty cell of each column that has one among the features."""
    if kept.size == 0:
        return
    found = 0
    for column in range(raw.shape[1]):
        empty = np.flatnonzero(raw.iloc[:, column].isna().to_numpy()[order])
        empty = empty[(empty >= kept[0]) & (empty < len(raw) - 2)]
        if empty.size and found < _MOST_GAPS:
            found += 1
            yield int(empty[len(empty) // 2]) + 1
