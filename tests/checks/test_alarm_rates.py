"""Rates of false and missed alarms of expectations (DATA-1)."""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from sluice.base.errors import ContractError
from sluice.checks.alarm_rates import measure_alarms
from sluice.checks.alarm_report import AlarmReport, AlarmSettings, wilson
from sluice.checks.corruptions import CORRUPTIONS, corruptible_columns
from sluice.checks.expectations import evaluate, with_implied
from sluice.checks.window_outcomes import find_alarms
from sluice.data.expectations import (
    Between,
    Expectation,
    GreaterOrEqual,
    InSet,
    NotNull,
    RowCount,
    StdBetween,
)
from sluice.data.schema import Column, Schema
from sluice.workloads.workload import Workload


class Walk(Workload):
    """Random prices around 100, and their changes from row to row."""

    raw_schema = Schema(
        columns=(
            Column(name="bid", unit="price"),
            Column(name="ask", unit="price"),
            Column(name="size"),
            Column(name="place", kind="string"),
        )
    )
    feature_schema = Schema(columns=(Column(name="move"), Column(name="next_move")))
    feature_columns = ("move",)
    target_column = "next_move"
    raw_expectations: tuple[Expectation, ...] = (
        RowCount(low=400),
        Between(column="bid", low=50, high=200),
        GreaterOrEqual(column="ask", other="bid"),
        InSet(column="place", values=("A",)),
    )
    feature_expectations: tuple[Expectation, ...] = (Between(column="move", low=-50, high=50),)
    num_rows: ClassVar[int] = 400

    def load_rows(self) -> pd.DataFrame:
        rng = np.random.default_rng(0)
        bid = 100 + rng.normal(size=self.num_rows)
        return pd.DataFrame(
            {"bid": bid, "ask": bid + 1, "size": rng.uniform(1, 2, self.num_rows), "place": "A"}
        )

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        move = raw["bid"].diff()
        return pd.DataFrame({"move": move, "next_move": move.shift(-1)}).dropna()


class NarrowBound(Walk):
    """One of its bounds is too narrow, so some good rows violate it."""

    raw_expectations = (Between(column="bid", low=97.5),)


class RaisingFeatures(Walk):
    """Its feature code raises ValueError for sizes that are not positive."""

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        if not (raw["size"] > 0).all():
            raise ValueError("no size")
        return super().compute_features(raw)


SETTINGS = AlarmSettings(window_rows=40, step_rows=10, plantings=4)


def measure(workload: Workload, settings: AlarmSettings = SETTINGS) -> AlarmReport:
    return measure_alarms(workload, settings, name="walk", progress=lambda _: None)


@pytest.mark.parametrize(("count", "of"), [(0, 10), (3, 10), (10, 10), (1, 1), (50, 1000)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_interval_equals_wilson_of_scipy(count: int, of: int, confidence: float) -> None:
    low, high = wilson(count, of, confidence=confidence)

    other = stats.binomtest(count, of).proportion_ci(confidence, method="wilson")
    assert (low, high) == pytest.approx((other.low, other.high), abs=1e-12)


def test_more_windows_narrow_the_interval() -> None:
    widths = [high - low for low, high in (wilson(n / 5, n, confidence=0.95) for n in (5, 50, 500))]

    assert widths == sorted(widths, reverse=True)
    assert wilson(0, 0, confidence=0.95) == (0.0, 1.0)


@pytest.mark.slow
def test_windows_evaluated_together_give_the_same_results() -> None:
    """The reference is the engine, which validates one window at a time."""
    rng = np.random.default_rng(4)
    expectations, _ = with_implied(
        (
            Between(column="a", low=-1.5, high=1.5, mostly=0.8),
            Between(column="b", low=-2, high=9),
            GreaterOrEqual(column="b", other="a"),
            InSet(column="c", values=(1, 2)),
            StdBetween(column="a", low=0.9, high=1.1),
        )
    )
    windows = []
    for size in (1, 2, *rng.integers(5, 25, 12)):
        a, b = rng.normal(size=(2, int(size)))
        a[rng.random(size) < 0.1] = np.nan
        b[rng.random(size) < 0.02] = np.inf
        windows.append(
            pd.DataFrame(
                {"a": a, "b": b + 2.5, "c": rng.choice([1, 2, 3], size, p=[0.6, 0.38, 0.02])}
            )
        )
    windows.append(windows[-1].assign(a=np.nan))

    raised_WE = find_alarms(windows, expectations)

    for window, raised_E in zip(windows, raised_WE, strict=True):
        results = evaluate(window, expectations, suite="one").results
        assert [r.outcome != "pass" for r in results] == raised_E.tolist()
    assert 0.1 < raised_WE.mean() < 0.9


@pytest.mark.slow
def test_empty_windows_do_not_pass() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0]})

    raised = find_alarms([frame.iloc[:0], frame], [NotNull(column="a")])

    assert raised.tolist() == [[True], [False]]


@pytest.fixture(scope="module")
def walk_report() -> AlarmReport:
    return measure(Walk())


@pytest.fixture(scope="module")
def narrow_bound_report() -> AlarmReport:
    return measure(NarrowBound())


@pytest.mark.slow
def test_good_bounds_raise_no_false_alarms(
    walk_report: AlarmReport,
) -> None:
    rates = {f.sentence: f.false_alarms for f in walk_report.expectations}
    assert rates.pop("The table has at least 400 rows.") is None
    assert all(rate is not None and rate.count == 0 for rate in rates.values())
    assert (walk_report.num_windows, walk_report.disjoint_windows) == (36, 9)
    highest = {rate.high for rate in rates.values() if rate is not None}
    assert highest == {wilson(0, 9, confidence=0.95)[1]}  # of the 36 windows, 9 are disjoint


@pytest.mark.slow
def test_false_alarms_are_counted_in_every_window(narrow_bound_report: AlarmReport) -> None:
    bid = NarrowBound().load_rows()["bid"]
    length = 42  # 40 rows of features need one before and one after
    expected = sum(bool((bid[s : s + length] < 97.5).any()) for s in range(0, 400 - 41, 10))
    (rate,) = (f.false_alarms for f in narrow_bound_report.expectations if "97.5" in f.sentence)
    assert rate is not None
    assert (rate.count, rate.of) == (expected, 36)
    assert 0 < expected < 36
    assert rate.low < rate.share < rate.high


@pytest.mark.slow
def test_each_corruption_is_detected_or_missed_as_expected(
    walk_report: AlarmReport,
) -> None:
    found = {(c.planted_in, c.corruption): c for c in walk_report.corruptions}

    empty = found["raw_data", "one cell empty"]
    assert (empty.planted, empty.caught, empty.refused) == (
        12,
        8,
        4,
    )  # the schema refuses an empty size
    assert empty.missed.count == 0
    assert empty.caught_by["raw_data: bid has a value in every row."] == 4
    swapped = found["raw_data", "two columns swapped"]
    assert (swapped.planted, swapped.caught) == (4, 4)
    assert swapped.caught_by["raw_data: ask is at least bid in every row."] == 4
    unit = found["raw_data", "column x100"]
    assert unit.missed_in == {"ask": 4, "size": 4}
    assert (unit.caught, unit.missed.of) == (4, 12)
    missing = found["raw_data", "rows missing"]
    assert (missing.caught, missing.refused, missing.missed.count) == (0, 0, 4)
    constant = found["features", "column constant"]
    assert constant.missed_in == {"move": 4, "next_move": 4}
    huge = found["features", "column x1,000,000"]
    assert (huge.caught, huge.missed_in) == (4, {"next_move": 4})


@pytest.mark.slow
def test_corruption_without_effect_is_not_counted() -> None:
    class Even(Walk):
        def load_rows(self) -> pd.DataFrame:
            return super().load_rows().assign(size=1.0)

    report = measure(Even())

    constant = next(c for c in report.corruptions if c.corruption == "column constant")
    assert constant.planted_in == "raw_data"
    assert constant.planted == 8  # bid and ask; the size is constant already


@pytest.mark.slow
def test_error_in_the_feature_code_counts_as_caught() -> None:
    report = measure(RaisingFeatures())

    zero = next(c for c in report.corruptions if c.corruption == "rows of zero")
    assert zero.caught_by["the feature code"] == 4
    assert (zero.refused, zero.missed.count + zero.caught) == (4, 8)


@pytest.mark.slow
def test_only_the_seed_selects_the_corrupted_rows(narrow_bound_report: AlarmReport) -> None:
    repeated, other = (
        measure(NarrowBound(), SETTINGS.model_copy(update={"seed": s})) for s in (0, 1)
    )

    assert repeated == narrow_bound_report
    assert repeated.expectations[0].false_alarms == other.expectations[0].false_alarms
    assert repeated.corruptions != other.corruptions


def test_too_few_rows_for_two_windows_are_refused() -> None:
    with pytest.raises(ContractError, match="two windows of 402 rows are required"):
        measure(Walk(), AlarmSettings(window_rows=400))


def test_an_expectation_on_a_missing_column_is_rejected() -> None:
    workload = Walk()
    workload.raw_expectations = (NotNull(column="gone"),)

    with pytest.raises(ContractError, match=r"'gone' of 'gone has a value in every row\.' is not"):
        measure(workload)


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda c: c.name)
def test_corruption_changes_only_the_planted_columns_of_a_copy(corruption) -> None:
    frame = Walk().load_rows()
    before = frame.copy()
    rng = np.random.default_rng(0)

    for columns in corruptible_columns(corruption, Walk.raw_schema):
        changed = corruption.plant(frame, columns, rng)

        pd.testing.assert_frame_equal(frame, before)
        assert not changed.equals(frame)
        if corruption.inserted_into != "rows":
            others = [c for c in frame if c not in columns]
            pd.testing.assert_frame_equal(changed[others], frame[others])


def test_text_is_not_corrupted_and_pairs_have_one_unit() -> None:
    by_name: dict[str, Callable[..., object]] = {}
    for corruption in CORRUPTIONS:
        found = list(corruptible_columns(corruption, Walk.raw_schema))
        by_name[corruption.name] = corruption.plant
        assert ("place",) not in found
        if corruption.inserted_into == "pair":
            assert found == [("bid", "ask")]
    assert len(by_name) == len(CORRUPTIONS), "names are unique"
