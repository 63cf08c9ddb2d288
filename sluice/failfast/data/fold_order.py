"""Folds that train on what they are measured on, or on what comes after it."""

from typing import Literal

import pandas as pd

from sluice.data.folds import Fold, RowRange
from sluice.findings.finding import Finding

_PAIRS: tuple[tuple[Literal["train", "val"], Literal["val", "test"]], ...] = (
    ("train", "val"),
    ("train", "test"),
    ("val", "test"),
)


def find_leaking_fold(frame: pd.DataFrame, folds: tuple[Fold, ...]) -> Finding | None:
    """Return the first fold whose parts overlap or whose train rows come late, or None.

    - Train, validation and test rows of one fold must have no row in common. Rows that several
      folds share are usual: walk-forward folds grow.
    - Where the frame is labelled by times in order, rising or falling, no train row may be later
      than the first test row. Rows of one moment may be in both. Rows that are not in the order
      of their times, such as those of several sources one after the other, are not asked.

    Args:
        frame: The feature frame.
        folds: None reaches past its end.
    """
    for fold in folds:
        for first, second in _PAIRS:
            shared = _shared(getattr(fold, first), getattr(fold, second))
            if shared is not None:
                return _overlap(frame, fold, first, second, shared)
    if not _in_time_order(frame.index):
        return None
    for fold in folds:
        latest = _times(frame, fold.train).max()
        earliest = _times(frame, fold.test).min()
        if latest > earliest:
            return Finding(
                outcome="fail",
                summary=f"Fold {fold.fold_id}: train rows must not be later than test rows; train "
                f"{_told(fold.train)} reaches to {latest}, and test {_told(fold.test)} begins at "
                f"{earliest}.",
                numbers={"fold": fold.fold_id},
                kind="folds out of order",
            )
    return None


def _shared(one: RowRange, two: RowRange) -> RowRange | None:
    start, stop = max(one.start, two.start), min(one.stop, two.stop)
    return RowRange(start=start, stop=stop) if start < stop else None


def _overlap(frame: pd.DataFrame, fold: Fold, first: str, second: str, shared: RowRange) -> Finding:
    ranges = f"{first} {_told(getattr(fold, first))} and {second} {_told(getattr(fold, second))}"
    return Finding(
        outcome="fail",
        summary=f"Fold {fold.fold_id}: {first} and {second} must have no row in common; {ranges} "
        f"share {len(shared)} rows, first row {shared.start} (label {frame.index[shared.start]}).",
        numbers={"fold": fold.fold_id, "shared_rows": len(shared)},
        kind="folds overlap",
    )


def _in_time_order(index: pd.Index) -> bool:
    if not isinstance(index, pd.DatetimeIndex | pd.PeriodIndex):
        return False
    return bool(index.is_monotonic_increasing or index.is_monotonic_decreasing)


def _times(frame: pd.DataFrame, rows: RowRange) -> pd.Index:
    return frame.index[rows.start : rows.stop]


def _told(rows: RowRange) -> str:
    return f"{rows.start}:{rows.stop}"
