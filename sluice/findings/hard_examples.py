"""Which examples does a model find hardest, and what is unusual about them?

Shape legend: N = examples, D = features.
"""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.findings.finding import HardExample, Standout

_MIN_DEVIATIONS = 2.0
_MAX_STANDOUTS = 3

_MAD_TO_STD = 1.4826
"""The deviation of a normal variable over its median absolute deviation."""


def find_hard_examples(
    loss_N: NDArray[np.float64],
    rows: NDArray[np.int64],
    frame: pd.DataFrame,
    feature_columns: tuple[str, ...],
    *,
    count: int,
) -> tuple[HardExample, ...]:
    """Return the examples with the highest loss, each with the features that stand out.

    A feature stands out when it is 2 deviations or more from the median of the rows looked at;
    the deviation is robust (median absolute deviation, scaled to a normal variable's), so that
    the very rows searched for do not hide themselves. The three largest are named.

    Equal losses are listed in row order. A loss that is not finite has no place in the order and
    is left out, as are columns that are no numbers and cells that are missing.

    Args:
        loss_N: Loss of each example, in the workload's unit.
        rows: Positions of the examples in ``frame``, (N,).
        frame: Feature frame.
        feature_columns: Columns to look at; those the frame lacks are skipped.
        count: Examples to list, at most.
    """
    finite = np.flatnonzero(np.isfinite(loss_N))
    worst = finite[np.argsort(-loss_N[finite], kind="stable")][:count]
    if worst.size == 0:
        return ()
    standouts = find_standouts(worst, rows, frame, feature_columns)
    median = float(np.median(loss_N[finite]))
    return tuple(
        HardExample(
            row=_label(frame.index[rows[i]]),
            loss=float(loss_N[i]),
            # A median at or below 0 is no measure of size.
            times_median=float(loss_N[i]) / median if median > 0 else float("nan"),
            standouts=found,
        )
        for i, found in zip(worst, standouts, strict=True)
    )


def find_standouts(
    wanted: NDArray[np.int64],
    rows: NDArray[np.int64],
    frame: pd.DataFrame,
    feature_columns: tuple[str, ...],
) -> tuple[tuple[Standout, ...], ...]:
    """Return for each wanted example the features that stand out among all of them.

    Args:
        wanted: Places in ``rows``.
        rows: Positions of the examples in ``frame``, (N,); the median is theirs.
        frame: Feature frame.
        feature_columns: Columns to look at; those the frame lacks are skipped.
    """
    known = [name for name in feature_columns if name in frame.columns]
    names = [name for name in known if pd.api.types.is_numeric_dtype(frame[name])]
    value_ND = frame.iloc[rows].loc[:, names].to_numpy(np.float64, na_value=np.nan)
    score_ND = _deviations(value_ND)
    return tuple(_standouts(names, value_ND[i], score_ND[i]) for i in wanted)


def _deviations(value_ND: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return robust deviations from the median; 0 for a constant column, NaN for a missing cell."""
    score_ND = np.full(value_ND.shape, np.nan)
    for column, value_N in enumerate(value_ND.T):
        known_N = value_N[np.isfinite(value_N)]
        if known_N.size == 0:
            continue
        distance_N = value_N - np.median(known_N)
        scale = _MAD_TO_STD * float(np.median(np.abs(known_N - np.median(known_N))))
        # More than half of the rows are equal, as in a flag: the plain deviation is left.
        scale = scale if scale > 0 else float(known_N.std())
        score_ND[:, column] = distance_N / scale if scale > 0 else 0.0
    return score_ND


def _standouts(
    names: list[str], value_D: NDArray[np.float64], score_D: NDArray[np.float64]
) -> tuple[Standout, ...]:
    size_D = np.where(np.isfinite(score_D), np.abs(score_D), 0.0)
    order = np.argsort(-size_D, kind="stable")[:_MAX_STANDOUTS]
    return tuple(
        Standout(feature=names[d], value=float(value_D[d]), deviations=float(score_D[d]))
        for d in order
        if size_D[d] >= _MIN_DEVIATIONS
    )


def _label(label: object) -> str:
    if isinstance(label, pd.Timestamp) and label == label.normalize():
        return str(label.date())
    return str(label)
