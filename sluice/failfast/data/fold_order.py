"""Finds folds whose splits share rows, or that train on rows later than the earliest test row."""

from typing import Literal

import pandas as pd

from sluice.base.pluralize import pluralize
from sluice.data.folds import Fold, RowRange
from sluice.findings.check_outcome import CheckOutcome

_SPLIT_PAIRS: tuple[tuple[Literal["train", "val"], Literal["val", "test"]], ...] = (
    ("train", "val"),
    ("train", "test"),
    ("val", "test"),
)


def find_leaking_fold(frame: pd.DataFrame, folds: tuple[Fold, ...]) -> CheckOutcome | None:
    """Return a finding for the first fold with overlapping or wrongly ordered splits, or None.

    - The train, validation and test splits of a fold must have no row in common. Different folds
      usually share rows: walk-forward folds grow.
    - If the frame has a sorted datetime index, ascending or descending, no train row may be later
      than the earliest test row. Train and test rows may have equal times. An unsorted index, such
      as the index of several concatenated sources, is not checked.

    Args:
        frame: The feature frame.
        folds: Folds that do not extend beyond the end of the frame.
    """
    for fold in folds:
        for first, second in _SPLIT_PAIRS:
            shared_range = _shared_range(getattr(fold, first), getattr(fold, second))
            if shared_range is not None:
                return _overlap_finding(frame, fold, first, second, shared_range)
    if not _is_in_time_order(frame.index):
        return None
    for fold in folds:
        latest_train_time = _index_labels(frame, fold.train).max()
        earliest_test_time = _index_labels(frame, fold.test).min()
        if latest_train_time > earliest_test_time:
            return CheckOutcome(
                outcome="fail",
                summary=f"Fold {fold.fold_id}: train rows must not be later than test rows; train "
                f"{_format_range(fold.train)} ends at {latest_train_time}, and test "
                f"{_format_range(fold.test)} starts at {earliest_test_time}.",
                numbers={"fold": fold.fold_id},
                fault="folds out of order",
            )
    return None


def _shared_range(one: RowRange, two: RowRange) -> RowRange | None:
    start, stop = max(one.start, two.start), min(one.stop, two.stop)
    return RowRange(start=start, stop=stop) if start < stop else None


def _overlap_finding(
    frame: pd.DataFrame, fold: Fold, first: str, second: str, shared_range: RowRange
) -> CheckOutcome:
    first_rows = _format_range(getattr(fold, first))
    second_rows = _format_range(getattr(fold, second))
    ranges = f"{first} {first_rows} and {second} {second_rows}"
    return CheckOutcome(
        outcome="fail",
        summary=f"Fold {fold.fold_id}: {first} and {second} must have no row in common; {ranges} "
        f"share {pluralize(len(shared_range), 'row')}, first row {shared_range.start} (label "
        f"{frame.index[shared_range.start]}).",
        numbers={"fold": fold.fold_id, "shared_rows": len(shared_range)},
        fault="folds overlap",
    )


def _is_in_time_order(index: pd.Index) -> bool:
    if not isinstance(index, pd.DatetimeIndex | pd.PeriodIndex):
        return False
    return bool(index.is_monotonic_increasing or index.is_monotonic_decreasing)


def _index_labels(frame: pd.DataFrame, rows: RowRange) -> pd.Index:
    return frame.index[rows.start : rows.stop]


def _format_range(rows: RowRange) -> str:
    return f"{rows.start}:{rows.stop}"
