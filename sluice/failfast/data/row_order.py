"""Tables in which the later rows are changed while all earlier rows are kept."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_Positions = NDArray[np.int64]

_MAX_GAP_CUTS = 3
"""Maximum number of columns whose gaps determine a cut; one cut per column."""

_SPARE_ROWS = 8
"""Minimum number of later rows that are kept beyond the rows that targets need."""


def time_order(index: pd.Index) -> _Positions:
    """Return the row positions in time order: sorted by a datetime index, else unchanged."""
    if isinstance(index, pd.DatetimeIndex) and not index.is_monotonic_increasing:
        return np.argsort(index.to_numpy(), kind="stable")
    return np.arange(len(index))


def cut_positions(
    raw: pd.DataFrame, features: pd.DataFrame, order: _Positions, shares: tuple[float, ...]
) -> tuple[int, ...]:
    """Return the cut positions as distinct indices into ``order``, none at either end.

    Args:
        raw: Raw rows.
        features: Features of the raw rows.
        order: Result of ``time_order``.
        shares: Cuts as shares of the rows.
    """
    label = raw.index[order]
    feature_positions = np.flatnonzero(label.isin(features.index))
    cuts = [int(len(raw) * share) for share in shares]
    if feature_positions.size > 1:
        # After the first row of the features and before their last: values that are filled at the
        # ends of a table become visible only there. Two rows must remain to be swapped.
        cuts += [int(feature_positions[0]) + 1, min(int(feature_positions[-1]), len(raw) - 2)]
    cuts += list(_cuts_after_gaps(raw, order, feature_positions))
    return tuple(dict.fromkeys(cut for cut in cuts if 0 < cut < len(raw) - 1))


def change_later_rows(
    raw: pd.DataFrame,
    features: pd.DataFrame,
    order: _Positions,
    *,
    cut: int,
    kept_share: float,
    rng: np.random.Generator,
) -> tuple[pd.DataFrame, pd.Index]:
    """Return a table with changed rows after ``cut``, and the labels that occur only before it.

    Args:
        raw: Raw rows.
        features: Features of the raw rows; the rows missing at their end show how far targets look
            ahead.
        order: Result of ``time_order``.
        cut: Index into ``order`` of the first row that changes.
        kept_share: Share of the later rows that are kept.
        rng: Draws the new order.
    """
    early, late = order[:cut], order[cut:]
    num_lost = (
        len(raw) - 1 - int(np.flatnonzero(raw.index[order].isin(features.index)).max(initial=0))
    )
    kept_positions = late[: max(int(len(late) * kept_share), num_lost + _SPARE_ROWS)]
    # A single cycle through all later rows, so that no row keeps its position.
    cycle = rng.permutation(late)
    source = np.arange(len(raw))
    source[cycle] = np.roll(cycle, 1)
    rows = np.sort(np.concatenate([early, kept_positions]))
    early_labels = raw.index[early].unique()
    if not raw.index.is_unique:  # rows of the same time may use each other
        early_labels = early_labels[~early_labels.isin(raw.index[late])]
    return raw.iloc[source[rows]].set_axis(raw.index[rows]), early_labels


def _cuts_after_gaps(
    raw: pd.DataFrame, order: _Positions, feature_positions: _Positions
) -> Iterator[int]:
    """Yield a position right after a gap in each of up to three columns with gaps."""
    if feature_positions.size == 0:
        return
    num_gaps = 0
    for column in range(raw.shape[1]):
        gaps = np.flatnonzero(raw.iloc[:, column].isna().to_numpy()[order])
        gaps = gaps[(gaps >= feature_positions[0]) & (gaps < len(raw) - 2)]
        if gaps.size and num_gaps < _MAX_GAP_CUTS:
            num_gaps += 1
            yield int(gaps[len(gaps) // 2]) + 1
