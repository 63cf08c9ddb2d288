"""Walk-forward folds, which train on the past and test on the future, with a gap in between."""

import itertools

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.base.settings import Record, Settings


class FoldSettings(Settings):
    """Settings of the walk-forward split of a time-ordered table."""

    num_folds: int = Field(4, ge=1, le=50, description="Number of consecutive test windows.")
    first_test_share: float = Field(
        0.4, gt=0, lt=1, description="Share of rows before the first test window."
    )
    val_share: float = Field(
        0.15,
        gt=0,
        lt=0.9,
        description="Share of the rows before a test window that are validation rows.",
    )
    embargo_rows: int = Field(
        5,
        ge=0,
        le=100_000,
        description="Gap between train, validation and test rows [rows]. If the horizon of the "
        "targets is longer, the gap is the horizon.",
    )


class RowRange(Record):
    """Rows ``start`` (included) to ``stop`` (excluded) of the feature frame, by position."""

    start: int = Field(ge=0)
    stop: int = Field(ge=0)

    @model_validator(mode="after")
    def _require_rows(self) -> "RowRange":
        if self.stop <= self.start:
            raise ValueError(
                f"a row range must contain at least one row, got {self.start}:{self.stop}"
            )
        return self

    def __len__(self) -> int:
        return self.stop - self.start

    def positions(self) -> NDArray[np.int64]:
        """Return the row positions (n,)."""
        return np.arange(self.start, self.stop)


class Fold(Record):
    """One train, validation and test split."""

    fold_id: int = Field(ge=0)
    train: RowRange
    val: RowRange
    test: RowRange


def walk_forward(num_rows: int, settings: FoldSettings, *, horizon_rows: int) -> tuple[Fold, ...]:
    """Split rows into folds that train on the past and test on the future.

    Each fold consists, in row order, of train rows from row 0, a gap, validation rows, a gap, and
    test rows. The train rows grow from fold to fold. The test windows are consecutive, cover every
    row from ``first_test_share`` on, and differ in length by at most one row.

    Args:
        num_rows: Number of rows of the table, in time order.
        settings: Shares, number of folds and embargo.
        horizon_rows: Number of rows from an example to the end of its target [rows]. The gap is
            the longer of the horizon and the embargo, so that no target of one split uses rows of
            the next split.

    Raises:
        ContractError: The table has too few rows for the folds and gaps; the message states the
            required number.
    """
    num_required = rows_needed(settings, horizon_rows=horizon_rows, min_train_rows=1)
    if num_rows < num_required:
        raise ContractError(
            f"{pluralize(settings.num_folds, 'walk-forward fold')} must have at least "
            f"{num_required} rows, got {num_rows} (first_test_share {settings.first_test_share}, "
            f"val_share {settings.val_share}, gap {_gap(settings, horizon_rows)} rows).",
            cause="The history is too short, or the gap is too long for it.",
            fix="Provide more rows, raise first_test_share, or lower embargo_rows or num_folds.",
        )
    first_test = _first_test_row(num_rows, settings)
    num_test_rows = num_rows - first_test
    edges = [
        first_test + num_test_rows * i // settings.num_folds for i in range(settings.num_folds + 1)
    ]
    return tuple(
        _make_fold(fold_id, start, stop, settings, horizon_rows)
        for fold_id, (start, stop) in enumerate(itertools.pairwise(edges))
    )


def rows_needed(settings: FoldSettings, *, horizon_rows: int, min_train_rows: int) -> int:
    """Return the minimum number of rows of a table for the folds.

    With this number, every fold has at least ``min_train_rows`` train rows and one test row. Only
    the train rows of the first fold are checked, because later folds have more train rows.
    """
    return next(
        num_rows
        for num_rows in itertools.count(2)
        if _train_stop(_first_test_row(num_rows, settings), settings, horizon_rows)
        >= min_train_rows
        and num_rows - _first_test_row(num_rows, settings) >= settings.num_folds
    )


def _make_fold(
    fold_id: int, test_start: int, test_stop: int, settings: FoldSettings, horizon_rows: int
) -> Fold:
    val_stop = test_start - _gap(settings, horizon_rows)
    return Fold(
        fold_id=fold_id,
        train=RowRange(start=0, stop=_train_stop(test_start, settings, horizon_rows)),
        val=RowRange(start=val_stop - _num_val_rows(test_start, settings), stop=val_stop),
        test=RowRange(start=test_start, stop=test_stop),
    )


def _first_test_row(num_rows: int, settings: FoldSettings) -> int:
    return int(num_rows * settings.first_test_share)


def _num_val_rows(test_start: int, settings: FoldSettings) -> int:
    return max(1, int(test_start * settings.val_share))


def _gap(settings: FoldSettings, horizon_rows: int) -> int:
    return max(settings.embargo_rows, horizon_rows)


def _train_stop(test_start: int, settings: FoldSettings, horizon_rows: int) -> int:
    return test_start - _num_val_rows(test_start, settings) - 2 * _gap(settings, horizon_rows)
