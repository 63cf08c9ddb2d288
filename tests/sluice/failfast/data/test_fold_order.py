"""POC-8: no fold trains on its test rows or on later rows."""

import itertools

import numpy as np
import pandas as pd
import pytest

from sluice.config.poc_settings import PocSettings
from sluice.data.folds import Fold, FoldSettings, RowRange, walk_forward
from sluice.failfast.data.feature_frame import check_features
from sluice.failfast.data.fold_order import find_leaking_fold
from tests.support.failfast_workloads import Signals

ROWS = 300


def make_fold(train, val, test, fold_id=0):
    parts = {"train": train, "val": val, "test": test}
    return Fold(
        fold_id=fold_id,
        **{name: RowRange(start=start, stop=stop) for name, (start, stop) in parts.items()},
    )


def make_frame(index=None):
    return pd.DataFrame({"a": np.arange(ROWS)}, index=index)


def make_dates(**options):
    return pd.date_range("2020-01-01", periods=ROWS, freq="D", **options)


HEALTHY = make_fold((0, 100), (110, 150), (160, 200))


@pytest.mark.parametrize(
    "index", [None, make_dates(), make_dates().to_period("D"), make_dates(tz="UTC")]
)
@pytest.mark.parametrize("embargo_rows", [0, 5])
def test_walk_forward_folds_pass(index, embargo_rows):
    folds = walk_forward(ROWS, FoldSettings(embargo_rows=embargo_rows), horizon_rows=0)

    assert find_leaking_fold(make_frame(index), folds) is None


def test_adjacent_ranges_do_not_overlap():
    assert find_leaking_fold(make_frame(), (make_fold((0, 100), (100, 150), (150, 300)),)) is None


@pytest.mark.parametrize(
    ("leaking_fold", "expected_text"),
    [
        (
            make_fold((0, 100), (99, 150), (160, 200), 3),
            "Fold 3: train and val must have no row in common; train 0:100 and val 99:150 share "
            "1 row, first row 99 (label ",
        ),
        (make_fold((0, 100), (110, 150), (50, 60)), "train and test"),
        (make_fold((0, 100), (110, 150), (149, 200)), "val and test"),
        (make_fold((0, 100), (20, 40), (160, 200)), "share 20 rows, first row 20"),
        (make_fold((50, 100), (20, 51), (160, 200)), "share 1 row, first row 50"),
    ],
)
@pytest.mark.parametrize("index", [None, make_dates()])
def test_parts_with_a_row_in_common_fail(leaking_fold, expected_text, index):
    finding = find_leaking_fold(make_frame(index), (HEALTHY, leaking_fold))

    assert (finding.outcome, finding.fault) == ("fail", "folds overlap")
    assert expected_text in finding.summary
    assert all(finding.response)


def test_reported_overlaps_agree_with_sets_of_rows():
    """Oracle: the positions of two parts as sets, for every order of three ranges."""
    edges = [(0, 20), (10, 30), (20, 40), (35, 50)]
    for parts in itertools.product(edges, repeat=3):
        rows = [set(range(*part)) for part in parts]
        is_overlapping = any(one & two for one, two in itertools.combinations(rows, 2))

        assert (find_leaking_fold(make_frame(), (make_fold(*parts),)) is not None) is is_overlapping


TRAIN_AFTER_TEST = make_fold((110, 300), (60, 100), (0, 50))


@pytest.mark.parametrize("index", [make_dates(), make_dates().to_period("D"), make_dates(tz="UTC")])
def test_train_rows_later_than_test_rows_fail_in_a_table_of_times(index):
    finding = find_leaking_fold(make_frame(index), (HEALTHY, TRAIN_AFTER_TEST))

    assert (finding.outcome, finding.fault) == ("fail", "folds out of order")
    assert "ends at 2020-10-26" in finding.summary
    assert "starts at 2020-01-01" in finding.summary
    assert all(finding.response)


def test_walk_forward_folds_of_a_newest_first_table_fail():
    folds = walk_forward(ROWS, FoldSettings(), horizon_rows=1)

    assert find_leaking_fold(make_frame(make_dates()[::-1]), folds).fault == "folds out of order"
    assert find_leaking_fold(make_frame(make_dates()[::-1]), (TRAIN_AFTER_TEST,)) is None


@pytest.mark.parametrize(
    "index",
    [None, pd.Index([f"patient {i}" for i in range(ROWS)]), make_dates()[np.r_[150:300, 0:150]]],
)
def test_train_rows_may_follow_test_rows_without_a_time_order(index):
    assert find_leaking_fold(make_frame(index), (TRAIN_AFTER_TEST,)) is None


def test_rows_with_the_same_time_may_be_in_train_and_test():
    index = pd.DatetimeIndex(np.repeat(make_dates()[:3].to_numpy(), 100))

    assert (
        find_leaking_fold(make_frame(index), (make_fold((0, 120), (130, 140), (150, 300)),)) is None
    )
    assert (
        find_leaking_fold(make_frame(index), (make_fold((0, 201), (205, 210), (215, 300)),)) is None
    )


def test_feature_check_rejects_overlapping_folds():
    class Overlaps(Signals):
        def plan_folds(self, frame):
            (first, *_) = super().plan_folds(frame)
            val_rows = RowRange(start=first.train.stop - 1, stop=first.val.stop)
            return (first.model_copy(update={"val": val_rows}),)

    workload = Overlaps()
    raw = workload.load_rows()
    features = workload.compute_features(raw)
    finding = check_features(workload, raw, features, workload.plan_folds(features), PocSettings())

    assert (finding.outcome, finding.fault) == ("fail", "folds overlap")
