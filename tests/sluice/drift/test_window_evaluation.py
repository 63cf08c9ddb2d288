"""Evaluation of a window against a drift reference (ROLL-3)."""

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
from tests.sluice.drift.frames import SMALL, make_frame, make_reference

REFERENCE_FRAME = make_frame(0, 2000)


@pytest.fixture(scope="module")
def reference():
    return make_reference(REFERENCE_FRAME)


def evaluate(reference, frame, *, threads: int = 1) -> DriftReport:
    return evaluate_window(reference, frame, window="w", threads=threads)


def column(report: DriftReport, name: str):
    (match,) = (result for result in report.columns if result.column == name)
    return match


def test_a_window_from_the_reference_distribution_is_stable(reference):
    report = evaluate(reference, make_frame(1, 500))

    assert report.verdict == "STABLE"
    assert report.passed
    assert report.drifted_columns == ()
    assert {result.verdict for result in report.columns} == {"STABLE"}
    assert report.joint is not None
    assert report.joint.verdict == "STABLE"


def test_only_the_shifted_column_is_reported_with_its_effect(reference):
    frame = make_frame(1, 500)
    frame["b"] += 0.5

    report = evaluate(reference, frame)

    assert [result.column for result in report.drifted_columns] == ["b"]
    assert report.drifted_columns[0].effect == pytest.approx(0.5, abs=0.12)
    assert report.drifted_columns[0].finding == "distribution"
    assert "'b'" in report.reason


def test_distances_equal_scipys_if_each_value_has_its_own_cell():
    rng = np.random.default_rng(0)
    reference_frame = pd.DataFrame({"n": rng.integers(20, size=2000)})
    window_frame = pd.DataFrame({"n": rng.integers(3, 20, size=400)})

    report = evaluate(make_reference(reference_frame), window_frame)
    distance_of = {s.name: s.distance for s in report.columns[0].statistics}

    assert distance_of["ks"] == pytest.approx(
        stats.ks_2samp(window_frame["n"], reference_frame["n"]).statistic
    )
    expected = stats.wasserstein_distance(
        window_frame["n"], reference_frame["n"]
    ) / reference_frame["n"].std(ddof=0)
    assert distance_of["wasserstein"] == pytest.approx(expected)
    assert report.joint is None


def test_distances_are_near_scipys_on_continuous_values(reference):
    window_frame = make_frame(1, 500)
    window_frame["a"] = window_frame["a"] * 1.3 + 0.2

    distance_of = {
        s.name: s.distance for s in column(evaluate(reference, window_frame), "a").statistics
    }

    reference_frame = REFERENCE_FRAME["a"]
    assert distance_of["ks"] == pytest.approx(
        stats.ks_2samp(window_frame["a"], reference_frame).statistic, abs=0.02
    )
    expected = stats.wasserstein_distance(window_frame["a"], reference_frame) / reference_frame.std(
        ddof=0
    )
    assert distance_of["wasserstein"] == pytest.approx(expected, rel=0.1)


def test_a_larger_share_of_a_category_is_detected_by_chi_square(reference):
    frame = make_frame(1, 500)
    frame.loc[:80, "city"] = "Rome"

    report = evaluate(reference, frame)
    result = column(report, "city")

    counts = frame["city"].value_counts().loc[["Bonn", "Lyon", "Rome"]]
    expected = REFERENCE_FRAME["city"].value_counts(normalize=True).loc[counts.index] * 500
    assert result.statistics[1].distance == pytest.approx(stats.chisquare(counts, expected)[0])
    assert result.verdict == "DRIFT"
    assert result.effect == pytest.approx(math.sqrt(result.statistics[1].distance / 500))


def test_a_changed_correlation_is_detected_by_the_joint_test():
    rng = np.random.default_rng(0)

    def pair(num_rows, correlation):
        first, second = rng.normal(size=(2, num_rows))
        other = correlation * first + math.sqrt(1 - correlation**2) * second
        return pd.DataFrame({"one": first, "other": other})

    report = evaluate(make_reference(pair(3000, 0.9)), pair(500, -0.9))

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
def test_each_data_fault_is_drift_with_its_own_finding(reference, change, name, finding):
    report = evaluate(reference, change(make_frame(1, 500)))

    assert report.verdict == "DRIFT"
    result = column(report, name)
    assert (result.verdict, result.finding) == ("DRIFT", finding)
    assert result.reason
    assert len(report.columns) == 5


def test_new_categories_are_reported_with_their_counts(reference):
    frame = make_frame(1, 500)
    frame.loc[:2, "city"], frame.loc[7, "city"] = "Oslo", "Kiel"

    assert column(evaluate(reference, frame), "city").new_categories == {"Oslo": 3, "Kiel": 1}


def test_new_categories_are_normal_if_every_window_of_the_reference_has_them():
    def customers(first, num_rows):
        return pd.DataFrame({"customer": [f"c{first + i // 2}" for i in range(num_rows)]})

    report = evaluate(make_reference(customers(0, 1000)), customers(10_000, 200))

    assert column(report, "customer").finding != "new_categories"
    assert len(column(report, "customer").new_categories) == 20


def test_a_new_value_in_a_constant_column_is_drift():
    reference = make_reference(pd.DataFrame({"k": np.full(1000, 3.0)}))

    unchanged = evaluate(reference, pd.DataFrame({"k": np.full(300, 3.0)}))
    assert (unchanged.verdict, unchanged.reason) == ("STABLE", "No drift in 1 column of 300 rows.")
    changed = evaluate(reference, pd.DataFrame({"k": np.r_[np.full(290, 3.0), np.full(10, 3.5)]}))
    assert changed.verdict == "DRIFT"
    assert math.isnan(changed.columns[0].effect)


@pytest.mark.parametrize("num_rows", [0, 1, 99])
def test_too_few_rows_are_inconclusive_and_the_required_number_is_stated(reference, num_rows):
    report = evaluate(reference, make_frame(1, num_rows))

    assert report.verdict == "INCONCLUSIVE"
    assert not report.passed
    assert f"has {num_rows} rows, required 100" in report.reason
    assert "at least 100 rows" in report.remedy


def test_a_missing_column_is_drift_even_in_a_short_window(reference):
    assert evaluate(reference, make_frame(1, 5).drop(columns="a")).verdict == "DRIFT"


def test_strongly_dependent_rows_need_a_longer_window():
    rng = np.random.default_rng(0)
    slow = pd.DataFrame({"slow": np.repeat(rng.normal(size=100), 50)})

    report = evaluate(make_reference(slow), slow[:200])

    assert report.verdict == "INCONCLUSIVE"
    num_required = report.columns[0].needed_rows
    assert num_required > 200
    assert f"{num_required}" in report.reason
    assert f"{num_required:,}" in report.remedy
    assert evaluate(make_reference(slow), slow[:num_required]).verdict != "INCONCLUSIVE"


def test_an_empty_window_of_a_sparse_column_is_inconclusive():
    rng = np.random.default_rng(0)
    rare = pd.DataFrame({"rare": np.where(rng.random(2000) < 0.003, 1.0, np.nan)})

    report = evaluate(make_reference(rare), pd.DataFrame({"rare": np.full(150, np.nan)}))

    assert report.verdict == "INCONCLUSIVE"
    assert report.columns[0].finding == "too_few_values"


def test_extra_columns_are_listed_and_not_tested(reference):
    report = evaluate(reference, make_frame(1, 500).assign(more=1))

    assert report.extra_columns == ("more",)
    assert report.verdict == "STABLE"


def test_p_values_are_adjusted_for_every_test_of_the_window(reference):
    report = evaluate(reference, make_frame(1, 500))

    tests = [*report.columns, report.joint]
    p_values = [*(result.p_value for result in report.columns), report.joint.statistic.p_value]
    expected = stats.false_discovery_control(p_values)
    assert [test.adjusted_p for test in tests] == pytest.approx(expected)
    assert all(test.reason.endswith(f"adjusted p {test.adjusted_p:.2g}.") for test in tests)


def test_missing_columns_stay_in_the_correction_for_multiple_tests(reference):
    frame = make_frame(1, 500)
    frame["b"] += 0.25

    whole = column(evaluate(reference, frame), "b").adjusted_p
    without = column(evaluate(reference, frame.drop(columns=["a", "holes"])), "b").adjusted_p

    assert without >= whole


def test_threads_and_column_order_do_not_change_a_report(reference):
    frame = make_frame(1, 500)

    first, second = (
        evaluate(reference, frame),
        evaluate(reference, frame[frame.columns[::-1]], threads=2),
    )

    assert first.model_dump_json() == second.model_dump_json()


def test_the_seed_determines_the_report(reference):
    repeated = build_reference(REFERENCE_FRAME, SMALL, seed=0, threads=2)
    other = build_reference(REFERENCE_FRAME, SMALL, seed=1, threads=1)
    frame = make_frame(1, 500)

    assert (
        evaluate(repeated, frame).model_dump_json() == evaluate(reference, frame).model_dump_json()
    )
    assert evaluate(other, frame).joint != evaluate(reference, frame).joint


def test_a_precalibrated_reference_gives_the_same_report(reference):
    frame = make_frame(1, 300)

    calibrated = reference.calibrated_for(300, threads=1)

    assert (
        evaluate(calibrated, frame).model_dump_json()
        == evaluate(reference, frame).model_dump_json()
    )


def test_a_larger_shift_never_has_a_larger_p_value(reference):
    frame = make_frame(1, 500)
    p_values = [
        column(evaluate(reference, frame.assign(a=frame["a"] + shift)), "a").p_value
        for shift in (0.0, 0.1, 0.2, 0.4, 0.8)
    ]

    assert p_values[1:] == sorted(p_values[1:], reverse=True)
    assert p_values[-1] < 0.01


def test_a_reference_of_one_column_detects_drift_without_a_joint_test():
    rng = np.random.default_rng(0)
    reference_frame = pd.DataFrame({"latency_s": rng.lognormal(-3, 0.5, size=3000)})
    slower = pd.DataFrame({"latency_s": rng.lognormal(-3, 0.5, size=500) * 1.3})

    report = evaluate(make_reference(reference_frame), slower)

    assert report.verdict == "DRIFT"
    assert report.joint is None


def weekdays(num_days: int, first: int = 0) -> pd.DataFrame:
    """Return consecutive days with sine, cosine and one-hot columns of the weekday, and noise."""
    day = (np.arange(num_days) + first) % 7
    columns = {"sin": np.sin(2 * np.pi * day / 7), "cos": np.cos(2 * np.pi * day / 7)}
    columns |= {f"weekday {number}": (day == number) * 1.0 for number in range(7)}
    return pd.DataFrame(columns | {"x": np.random.default_rng(first).normal(size=num_days)})


@pytest.mark.slow
def test_random_float32_requests_of_all_weekdays_are_stable():
    """A server samples requests randomly as float32, but the reference is float64."""
    days = weekdays(1400)
    reference = make_reference(days)

    def count_drifted(window) -> int:
        return sum(evaluate(reference, window(seed)).verdict != "STABLE" for seed in range(20))

    assert count_drifted(lambda seed: days.sample(300, random_state=seed).astype(np.float32)) <= 3
    assert count_drifted(lambda seed: weekdays(300, seed)) <= 3
    without_mondays = days[days["weekday 0"] == 0]
    assert count_drifted(lambda seed: without_mondays.sample(300, random_state=seed)) == 20


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (make_frame(0, 99), "at least 100 rows and one column, got 99 rows"),
        (pd.DataFrame(index=range(500)), "got 500 rows and 0 columns"),
        (make_frame(0, 200).assign(b=np.nan), "must have values, got none in 1 column: b"),
        (make_frame(0, 200).assign(b=np.inf), "must have values, got none in 1 column: b"),
        (make_frame(0, 200).set_axis(list("aabcd"), axis=1), "got 'a' twice"),
        (
            make_frame(0, 200).assign(t=pd.Timestamp("2020")),
            "requires numbers or categories, but column 't'",
        ),
    ],
)
def test_an_unusable_reference_is_rejected(frame, message):
    with pytest.raises(ContractError, match=message):
        make_reference(frame)


def test_more_psi_bins_than_cells_are_refused():
    with pytest.raises(ValueError, match=r"must not exceed num_cells \(20\), got 30"):
        DriftSettings(num_cells=20, psi_bins=30)
