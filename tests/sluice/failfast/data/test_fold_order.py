"""POC-8: no fold trains on its test rows, or on rows later than these."""

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


def fold(train, val, test, fold_id=0):
    parts = {"train": train, "val": val, "test": test}
    return Fold(
        fold_id=fold_id,
        **{name: RowRange(start=start, stop=stop) for name, (start, stop) in parts.items()},
    )


def frame(index=None):
    return pd.DataFrame({"a": np.arange(ROWS)}, index=index)


def days(**options):
    return pd.date_range("2020-01-01", periods=ROWS, freq="D", **options)


HEALTHY = fold((0, 100), (110, 150), (160, 200))


@pytest.mark.parametrize("index", [None, days(), days().to_period("D"), days(tz="UTC")])
@pytest.mark.parametrize("embargo_rows", [0, 5])
def test_walk_forward_folds_pass(index, embargo_rows):
    folds = walk_forward(ROWS, FoldSettings(embargo_rows=embargo_rows), horizon_rows=0)

    assert find_leaking_fold(frame(index), folds) is None


def test_rows_that_touch_are_no_overlap():
    assert find_leaking_fold(frame(), (fold((0, 100), (100, 150), (150, 300)),)) is None


@pytest.mark.parametrize(
    ("leaking", "told"),
    [
        (
            fold((0, 100), (99, 150), (160, 200), 3),
            "Fold 3: train and val must have no row in common; train 0:100 and val 99:150 share "
            "1 row, first row 99 (label ",
        ),
        (fold((0, 100), (110, 150), (50, 60)), "train and test"),
        (fold((0, 100), (110, 150), (149, 200)), "val and test"),
        (fold((0, 100), (20, 40), (160, 200)), "share 20 rows, first row 20"),
        (fold((50, 100), (20, 51), (160, 200)), "share 1 row, first row 50"),
    ],
)
@pytest.mark.parametrize("index", [None, days()])
def test_parts_with_a_row_in_common_fail(leaking, told, index):
    finding = find_leaking_fold(frame(index), (HEALTHY, leaking))

    assert (finding.outcome, finding.fault) == ("fail", "folds overlap")
    assert told in finding.summary
    assert all(finding.response)


def test_it_agrees_with_sets_of_rows():
    """Oracle: the positions of two parts as sets, for every order of three ranges."""
    edges = [(0, 20), (10, 30), (20, 40), (35, 50)]
    for parts in itertools.product(edges, repeat=3):
        rows = [set(range(*part)) for part in parts]
        leaking = any(one & two for one, two in itertools.combinations(rows, 2))

        assert (find_leaking_fold(frame(), (fold(*parts),)) is not None) is leaking


LATE = fold((110, 300), (60, 100), (0, 50))


@pytest.mark.parametrize("index", [days(), days().to_period("D"), days(tz="UTC")])
def test_train_rows_later_than_test_rows_fail_in_a_table_of_times(index):
    finding = find_leaking_fold(frame(index), (HEALTHY, LATE))

    assert (finding.outcome, finding.fault) == ("fail", "folds out of order")
    assert "ends at 2020-10-26" in finding.summary
    assert "starts at 2020-01-01" in finding.summary
    assert all(finding.response)


def test_newest_first_makes_walk_forward_train_on_the_future():
    folds = walk_forward(ROWS, FoldSettings(), horizon_rows=1)

    assert find_leaking_fold(frame(days()[::-1]), folds).fault == "folds out of order"
    assert find_leaking_fold(frame(days()[::-1]), (LATE,)) is None


@pytest.mark.parametrize(
    "index",
    [None, pd.Index([f"patient {i}" for i in range(ROWS)]), days()[np.r_[150:300, 0:150]]],
)
def test_rows_without_an_order_in_time_may_be_tested_first(index):
    assert find_leaking_fold(frame(index), (LATE,)) is None


def test_rows_with_the_same_time_may_be_in_train_and_test():
    index = pd.DatetimeIndex(np.repeat(days()[:3].to_numpy(), 100))

    assert find_leaking_fold(frame(index), (fold((0, 120), (130, 140), (150, 300)),)) is None
    assert find_leaking_fold(frame(index), (fold((0, 201), (205, 210), (215, 300)),)) is None


def test_the_feature_check_rejects_such_folds():
    class Overlaps(Signals):
        def plan_folds(self, frame):
            (first, *_) = super().plan_folds(frame)
            early = RowRange(start=first.train.stop - 1, stop=first.val.stop)
            return (first.model_copy(update={"val": early}),)

    workload = Overlaps()
    raw = workload.load_rows()
    features = workload.compute_features(raw)
    finding = check_features(workload, raw, features, workload.plan_folds(features), PocSettings())

    assert (finding.outcome, finding.fault) == ("fail", "folds overlap")
