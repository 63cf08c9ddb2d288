"""A window against a reference: what is found, and what is never skipped (ROLL-3)."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from sluice.base.errors import ContractError
from sluice.config.drift_settings import DriftSettings
from sluice.drift.reference import build_reference
from sluice.drift.report import DriftReport
from sluice.drift.window_evaluation import evaluate_window
from tests.sluice.drift.frames import SMALL, mixed, reference_of

REFERENCE_FRAME = mixed(0, 2000)


@pytest.fixture(scope="module")
def reference():
    return reference_of(REFERENCE_FRAME)


def judge(reference, frame, *, threads: int = 1) -> DriftReport:
    return evaluate_window(reference, frame, window="w", threads=threads)


def column(report: DriftReport, name: str):
    (found,) = (result for result in report.columns if result.column == name)
    return found


def test_a_window_like_the_reference_is_stable(reference):
    report = judge(reference, mixed(1, 500))

    assert report.verdict == "STABLE"
    assert report.passed
    assert report.drifted_columns == ()
    assert {result.verdict for result in report.columns} == {"STABLE"}
    assert report.joint is not None
    assert report.joint.verdict == "STABLE"


def test_a_shifted_column_is_named_with_its_size_and_the_others_are_not(reference):
    frame = mixed(1, 500)
    frame["b"] += 0.5

    report = judge(reference, frame)

    assert [result.column for result in report.drifted_columns] == ["b"]
    assert report.drifted_columns[0].effect == pytest.approx(0.5, abs=0.12)
    assert report.drifted_columns[0].finding == "distribution"
    assert "'b'" in report.reason


def test_distances_are_scipys_on_values_that_have_cells_of_their_own():
    rng = np.random.default_rng(0)
    was = pd.DataFrame({"n": rng.integers(20, size=2000)})
    now = pd.DataFrame({"n": rng.integers(3, 20, size=400)})

    report = judge(reference_of(was), now)
    of = {s.name: s.distance for s in report.columns[0].statistics}

    assert of["ks"] == pytest.approx(stats.ks_2samp(now["n"], was["n"]).statistic)
    moved = stats.wasserstein_distance(now["n"], was["n"]) / was["n"].std(ddof=0)
    assert of["wasserstein"] == pytest.approx(moved)
    assert report.joint is None


def test_distances_are_near_scipys_on_continuous_values(reference):
    now = mixed(1, 500)
    now["a"] = now["a"] * 1.3 + 0.2

    of = {s.name: s.distance for s in column(judge(reference, now), "a").statistics}

    was = REFERENCE_FRAME["a"]
    assert of["ks"] == pytest.approx(stats.ks_2samp(now["a"], was).statistic, abs=0.02)
    moved = stats.wasserstein_distance(now["a"], was) / was.std(ddof=0)
    assert of["wasserstein"] == pytest.approx(moved, rel=0.1)


def test_a_category_that_grew_is_found_by_chi_square(reference):
    frame = mixed(1, 500)
    frame.loc[:80, "city"] = "Rome"

    report = judge(reference, frame)
    found = column(report, "city")

    counts = frame["city"].value_counts().loc[["Bonn", "Lyon", "Rome"]]
    expected = REFERENCE_FRAME["city"].value_counts(normalize=True).loc[counts.index] * 500
    assert found.statistics[1].distance == pytest.approx(stats.chisquare(counts, expected)[0])
    assert found.verdict == "DRIFT"
    assert found.effect == pytest.approx(math.sqrt(found.statistics[1].distance / 500))


def test_a_changed_dependence_is_found_by_the_joint_test():
    rng = np.random.default_rng(0)

    def pair(num_rows, correlation):
        one, two = rng.normal(size=(2, num_rows))
        other = correlation * one + math.sqrt(1 - correlation**2) * two
        return pd.DataFrame({"one": one, "other": other})

    report = judge(reference_of(pair(3000, 0.9)), pair(500, -0.9))

    assert report.verdict == "DRIFT"
    assert report.drifted_columns == ()
    assert "joint distribution" in report.reason


@pytest.mark.parametrize(
    ("change", "name", "finding"),
    [
        (lambda f: f.drop(columns="b"), "b", "missing_column"),
        (lambda f: f.assign(b=np.nan), "b", "all_missing"),
        (lambda f: f.assign(b=np.inf), "b", "all_missing"),
        (lambda f: f.assign(city=None), "city", "all_missing"),
        (lambda f: f.assign(b=f["b"].astype(str)), "b", "changed_kind"),
        (lambda f: f.assign(b=pd.date_range("2020", periods=len(f))), "b", "changed_kind"),
        (lambda f: f.assign(city=1.0), "city", "changed_kind"),
        (lambda f: f.assign(b=f["b"].where(f.index > 30)), "b", "missing_values"),
        (lambda f: f.assign(holes=f["holes"].fillna(0.0)), "holes", "missing_values"),
        (lambda f: f.assign(city=f["city"].where(f.index > 2, "Oslo")), "city", "new_categories"),
    ],
)
def test_each_kind_of_fault_is_drift_with_its_own_name(reference, change, name, finding):
    report = judge(reference, change(mixed(1, 500)))

    assert report.verdict == "DRIFT"
    found = column(report, name)
    assert (found.verdict, found.finding) == ("DRIFT", finding)
    assert found.reason
    assert len(report.columns) == 5


def test_new_categories_are_named_with_their_rows(reference):
    frame = mixed(1, 500)
    frame.loc[:2, "city"], frame.loc[7, "city"] = "Oslo", "Kiel"

    assert column(judge(reference, frame), "city").new_categories == {"Oslo": 3, "Kiel": 1}


def test_new_categories_are_normal_if_every_window_of_the_reference_has_them():
    def customers(first, num_rows):
        return pd.DataFrame({"customer": [f"c{first + i // 2}" for i in range(num_rows)]})

    report = judge(reference_of(customers(0, 1000)), customers(10_000, 200))

    assert column(report, "customer").finding != "new_categories"
    assert len(column(report, "customer").new_categories) == 20


def test_a_value_that_a_constant_column_never_had_is_drift():
    reference = reference_of(pd.DataFrame({"k": np.full(1000, 3.0)}))

    same = judge(reference, pd.DataFrame({"k": np.full(300, 3.0)}))
    assert (same.verdict, same.reason) == ("STABLE", "No drift in 1 column of 300 rows.")
    moved = judge(reference, pd.DataFrame({"k": np.r_[np.full(290, 3.0), np.full(10, 3.5)]}))
    assert moved.verdict == "DRIFT"
    assert math.isnan(moved.columns[0].effect)


@pytest.mark.parametrize("num_rows", [0, 1, 99])
def test_too_few_rows_decide_nothing_and_say_how_many_are_needed(reference, num_rows):
    report = judge(reference, mixed(1, num_rows))

    assert report.verdict == "INCONCLUSIVE"
    assert not report.passed
    assert f"has {num_rows} rows, required 100" in report.reason
    assert "at least 100 rows" in report.remedy


def test_a_missing_column_is_drift_even_in_a_short_window(reference):
    assert judge(reference, mixed(1, 5).drop(columns="a")).verdict == "DRIFT"


def test_rows_that_depend_on_each_other_for_long_need_a_longer_window():
    rng = np.random.default_rng(0)
    slow = pd.DataFrame({"slow": np.repeat(rng.normal(size=100), 50)})

    report = judge(reference_of(slow), slow[:200])

    assert report.verdict == "INCONCLUSIVE"
    needed = report.columns[0].needed_rows
    assert needed > 200
    assert f"{needed}" in report.reason
    assert f"{needed:,}" in report.remedy
    assert judge(reference_of(slow), slow[:needed]).verdict != "INCONCLUSIVE"


def test_a_column_that_is_mostly_empty_may_be_empty_and_is_then_not_called_healthy():
    rng = np.random.default_rng(0)
    rare = pd.DataFrame({"rare": np.where(rng.random(2000) < 0.003, 1.0, np.nan)})

    report = judge(reference_of(rare), pd.DataFrame({"rare": np.full(150, np.nan)}))

    assert report.verdict == "INCONCLUSIVE"
    assert report.columns[0].finding == "too_few_values"


def test_extra_columns_are_listed_and_not_tested(reference):
    report = judge(reference, mixed(1, 500).assign(more=1))

    assert report.extra_columns == ("more",)
    assert report.verdict == "STABLE"


def test_p_values_are_adjusted_for_every_test_of_the_window(reference):
    report = judge(reference, mixed(1, 500))

    tests = [*report.columns, report.joint]
    p_values = [*(result.p_value for result in report.columns), report.joint.statistic.p_value]
    expected = stats.false_discovery_control(p_values)
    assert [test.adjusted_p for test in tests] == pytest.approx(expected)
    assert all(test.reason.endswith(f"adjusted p {test.adjusted_p:.2g}.") for test in tests)


def test_what_cannot_be_compared_stays_in_the_family(reference):
    frame = mixed(1, 500)
    frame["b"] += 0.25

    whole = column(judge(reference, frame), "b").adjusted_p
    without = column(judge(reference, frame.drop(columns=["a", "holes"])), "b").adjusted_p

    assert without >= whole


def test_neither_threads_nor_the_order_of_columns_change_a_result(reference):
    frame = mixed(1, 500)

    one, two = judge(reference, frame), judge(reference, frame[frame.columns[::-1]], threads=2)

    assert one.model_dump_json() == two.model_dump_json()


def test_the_seed_decides_the_numbers(reference):
    same = build_reference(REFERENCE_FRAME, SMALL, seed=0, threads=2)
    other = build_reference(REFERENCE_FRAME, SMALL, seed=1, threads=1)
    frame = mixed(1, 500)

    assert judge(same, frame).model_dump_json() == judge(reference, frame).model_dump_json()
    assert judge(other, frame).joint != judge(reference, frame).joint


def test_a_reference_calibrated_before_gives_the_same_report(reference):
    frame = mixed(1, 300)

    ready = reference.calibrated_for(300, threads=1)

    assert judge(ready, frame).model_dump_json() == judge(reference, frame).model_dump_json()


def test_a_larger_shift_never_has_a_larger_p_value(reference):
    frame = mixed(1, 500)
    found = [
        column(judge(reference, frame.assign(a=frame["a"] + shift)), "a").p_value
        for shift in (0.0, 0.1, 0.2, 0.4, 0.8)
    ]

    assert found[1:] == sorted(found[1:], reverse=True)
    assert found[-1] < 0.01


def test_latency_drift_is_the_same_on_one_column():
    rng = np.random.default_rng(0)
    was = pd.DataFrame({"latency_s": rng.lognormal(-3, 0.5, size=3000)})
    slower = pd.DataFrame({"latency_s": rng.lognormal(-3, 0.5, size=500) * 1.3})

    report = judge(reference_of(was), slower)

    assert report.verdict == "DRIFT"
    assert report.joint is None


def weekdays(num_days: int, first: int = 0) -> pd.DataFrame:
    """Consecutive days: the weekday as sine, cosine and one-hot columns, and noise."""
    day = (np.arange(num_days) + first) % 7
    columns = {"sin": np.sin(2 * np.pi * day / 7), "cos": np.cos(2 * np.pi * day / 7)}
    columns |= {f"weekday {number}": (day == number) * 1.0 for number in range(7)}
    return pd.DataFrame(columns | {"x": np.random.default_rng(first).normal(size=num_days)})


@pytest.mark.slow
def test_random_requests_of_weekdays_in_single_precision_are_stable():
    """A server samples requests at random, as float32; the reference is float64."""
    days = weekdays(1400)
    reference = reference_of(days)

    def count_drifted(window) -> int:
        return sum(judge(reference, window(seed)).verdict != "STABLE" for seed in range(20))

    assert count_drifted(lambda seed: days.sample(300, random_state=seed).astype(np.float32)) <= 3
    assert count_drifted(lambda seed: weekdays(300, seed)) <= 3
    busy = days[days["weekday 0"] == 0]
    assert count_drifted(lambda seed: busy.sample(300, random_state=seed)) == 20


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (mixed(0, 99), "at least 100 rows and one column, got 99 rows"),
        (pd.DataFrame(index=range(500)), "got 500 rows and 0 columns"),
        (mixed(0, 200).assign(b=np.nan), "must have values, got none in 1 column: b"),
        (mixed(0, 200).assign(b=np.inf), "must have values, got none in 1 column: b"),
        (mixed(0, 200).set_axis(list("aabcd"), axis=1), "got 'a' twice"),
        (
            mixed(0, 200).assign(t=pd.Timestamp("2020")),
            "requires numbers or categories, but column 't'",
        ),
    ],
)
def test_an_unusable_reference_is_rejected(frame, message):
    with pytest.raises(ContractError, match=message):
        reference_of(frame)


def test_psi_bins_cannot_be_more_than_cells():
    with pytest.raises(ValueError, match=r"must not exceed num_cells \(20\), got 30"):
        DriftSettings(num_cells=20, psi_bins=30)
