"""Changes the later rows of a table without changing its earlier rows."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_Positions = NDArray[np.int64]

_MAX_MISSING_VALUE_CUTS = 3
"""Maximum number of columns in which a cut is placed after a missing value; one cut per column."""

_SPARE_ROWS = 8
"""Minimum number of later rows that are kept in addition to the rows that targets need."""


def time_order(index: pd.Index) -> _Positions:
    """Return the row positions in time order: sorted by a datetime index, else as in the table."""
    if isinstance(index, pd.DatetimeIndex) and not index.is_monotonic_increasing:
        return np.argsort(index.to_numpy(), kind="stable")
    return np.arange(len(index))


def cut_positions(
    raw: pd.DataFrame, features: pd.DataFrame, order: _Positions, shares: tuple[float, ...]
) -> tuple[int, ...]:
    """Return the cuts: distinct indices into ``order``, each with a row before and two rows after.

    Args:
        raw: Raw rows.
        features: Features of the raw rows.
        order: Result of ``time_order``.
        shares: Cuts as shares of the rows.
    """
    labels = raw.index[order]
    feature_positions = np.flatnonzero(labels.isin(features.index))
    cuts = [int(len(raw) * share) for share in shares]
    if feature_positions.size > 1:
        # Cut after the first row of the features and before their last row. Only these cuts detect
        # a fill at the start or end of the table. A cut needs two later rows, which are swapped.
        cuts += [int(feature_positions[0]) + 1, min(int(feature_positions[-1]), len(raw) - 2)]
    cuts += list(_cuts_after_missing_values(raw, order, feature_positions))
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
        features: Features of the raw rows. The number of last raw rows without features shows how
            many later rows a target needs.
        order: Result of ``time_order``.
        cut: Index into ``order`` of the first row that changes.
        kept_share: Minimum share of the later rows that are kept. More rows are kept if targets
            need them.
        rng: Draws the new order of the later rows.
    """
    early_positions, late_positions = order[:cut], order[cut:]
    num_rows_without_features = (
        len(raw) - 1 - int(np.flatnonzero(raw.index[order].isin(features.index)).max(initial=0))
    )
    kept_positions = late_positions[
        : max(int(len(late_positions) * kept_share), num_rows_without_features + _SPARE_ROWS)
    ]
    # Move the later rows along a single cycle, so that no row keeps its position.
    cycle = rng.permutation(late_positions)
    source_positions = np.arange(len(raw))
    source_positions[cycle] = np.roll(cycle, 1)
    rows = np.sort(np.concatenate([early_positions, kept_positions]))
    early_labels = raw.index[early_positions].unique()
    if not raw.index.is_unique:  # the features of a row may use other rows of the same time
        early_labels = early_labels[~early_labels.isin(raw.index[late_positions])]
    return raw.iloc[source_positions[rows]].set_axis(raw.index[rows]), early_labels


def _cuts_after_missing_values(
    raw: pd.DataFrame, order: _Positions, feature_positions: _Positions
) -> Iterator[int]:
    """Yield the position after the middle missing value of up to three columns with such values."""
    if feature_positions.size == 0:
        return
    num_cuts = 0
    for column in range(raw.shape[1]):
        missing_positions = np.flatnonzero(raw.iloc[:, column].isna().to_numpy()[order])
        missing_positions = missing_positions[
            (missing_positions >= feature_positions[0]) & (missing_positions < len(raw) - 2)
        ]
        if missing_positions.size and num_cuts < _MAX_MISSING_VALUE_CUTS:
            num_cuts += 1
            yield int(missing_positions[len(missing_positions) // 2]) + 1
