"""Walk-forward folds (DATA-3)."""

import itertools

import pytest

from sluice.base.errors import ContractError
from sluice.data.folds import FoldSettings, rows_needed, walk_forward

CASES = [
    (num_rows, FoldSettings(num_folds=n, first_test_share=f, val_share=v, embargo_rows=e), h)
    for num_rows, n, f, v, e, h in itertools.product(
        (120, 121, 997, 4958), (1, 3, 4), (0.4, 0.71), (0.05, 0.3), (0, 5), (1, 7)
    )
]


@pytest.mark.parametrize(("num_rows", "settings", "horizon_rows"), CASES)
def test_folds_are_ordered_separated_by_gaps_and_cover_all_test_rows(
    num_rows, settings, horizon_rows
):
    folds = walk_forward(num_rows, settings, horizon_rows=horizon_rows)
    gap = max(settings.embargo_rows, horizon_rows)

    assert [fold.fold_id for fold in folds] == list(range(settings.num_folds))
    for fold in folds:
        assert fold.train.start == 0
        assert fold.val.start - fold.train.stop == gap
        assert fold.test.start - fold.val.stop == gap
        assert len(fold.val) == max(1, int(fold.test.start * settings.val_share))
    tested = [row for fold in folds for row in fold.test.positions()]
    assert tested == list(range(int(num_rows * settings.first_test_share), num_rows))
    assert all(a.train.stop < b.train.stop for a, b in itertools.pairwise(folds))
    lengths = [len(fold.test) for fold in folds]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("horizon_rows", [1, 3, 9])
def test_targets_do_not_overlap_the_next_split(horizon_rows):
    for fold in walk_forward(500, FoldSettings(embargo_rows=0), horizon_rows=horizon_rows):
        assert fold.train.stop - 1 + horizon_rows < fold.val.start
        assert fold.val.stop - 1 + horizon_rows < fold.test.start


def test_split_of_100_rows_into_two_folds_has_expected_bounds():
    settings = FoldSettings(num_folds=2, first_test_share=0.5, val_share=0.2, embargo_rows=3)

    first, second = walk_forward(100, settings, horizon_rows=1)

    assert [(r.start, r.stop) for r in (first.train, first.val, first.test)] == [
        (0, 34),
        (37, 47),
        (50, 75),
    ]
    assert [(r.start, r.stop) for r in (second.train, second.val, second.test)] == [
        (0, 54),
        (57, 72),
        (75, 100),
    ]


def test_equal_arguments_give_equal_folds():
    splits = [walk_forward(1000, FoldSettings(), horizon_rows=1) for _ in range(2)]

    assert splits[0] == splits[1]


@pytest.mark.parametrize("settings", [case[1] for case in CASES[::9]])
def test_too_few_rows_are_rejected_with_the_required_number(settings):
    needed = rows_needed(settings, horizon_rows=1, min_train_rows=1)

    assert walk_forward(needed, settings, horizon_rows=1)
    with pytest.raises(ContractError, match=rf"at least {needed} rows, got {needed - 1} "):
        walk_forward(needed - 1, settings, horizon_rows=1)


def test_rows_needed_is_the_minimum_for_min_train_rows_in_the_first_fold():
    needed = rows_needed(FoldSettings(), horizon_rows=1, min_train_rows=44)

    assert len(walk_forward(needed, FoldSettings(), horizon_rows=1)[0].train) >= 44
    assert len(walk_forward(needed - 1, FoldSettings(), horizon_rows=1)[0].train) < 44
