"""Expectations report violations and measurements that are impossible separately (DATA-1)."""

import numpy as np
import pandas as pd
import pytest

from sluice.base.errors import ContractError
from sluice.checks.expectations import evaluate, violating_rows
from sluice.checks.suite_report import ExpectationResult, ExpectationSuiteReport, describe
from sluice.data.expectations import (
    Between,
    Expectation,
    GreaterOrEqual,
    InSet,
    NotNull,
    RowCount,
    StdBetween,
)
from tests.support.relative_timing import relative_duration

pytestmark = pytest.mark.slow  # the engine's import takes 2 to 4 s


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path, monkeypatch):
    """Run each test in an empty working directory, which must stay empty."""
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def bars() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    low = rng.uniform(50, 60, 200)
    return pd.DataFrame(
        {
            "low": low,
            "high": low + rng.uniform(1, 2, 200),
            "volume": rng.integers(1, 1000, 200),
            "venue": "A",
        },
        index=pd.date_range("2001-01-01", periods=200, name="date"),
    )


GOOD = (
    NotNull(column="low"),
    Between(column="low", low=50, high=60),
    Between(column="volume", low=0),
    GreaterOrEqual(column="high", other="low"),
    InSet(column="venue", values=("A", "B")),
    RowCount(low=200),
    StdBetween(column="low", low=1, high=5),
)


def evaluate_one(frame: pd.DataFrame, expectation: Expectation) -> ExpectationResult:
    """Return the result of the declared expectation, without those of its implied ones."""
    return evaluate(frame, (expectation,), suite="test").results[0]


def test_good_data_passes_every_kind_without_output(bars, capfd):
    report = evaluate(bars, GOOD, suite="raw")

    assert report.passed
    assert report.outcome == "pass"
    assert report.problems == ()
    assert [r.expectation for r in report.results[: len(GOOD)]] == list(GOOD)
    assert capfd.readouterr() == ("", "")


def test_report_round_trips_through_json(bars):
    bars.iloc[4, 0] = np.nan
    report = evaluate(bars, (*GOOD, NotNull(column="gone")), suite="raw")

    assert ExpectationSuiteReport.model_validate_json(report.model_dump_json()) == report


def test_the_table_is_not_changed(bars):
    before = bars.copy()

    evaluate(bars, GOOD, suite="raw")

    pd.testing.assert_frame_equal(bars, before)


def test_bad_rows_are_counted_and_reported_with_their_labels(bars):
    bars.loc["2001-01-08", "low"] = 61.5
    bars.loc["2001-02-01", "low"] = -3.0

    result = evaluate_one(bars, Between(column="low", low=50, high=60))

    assert result.outcome == "fail"
    assert (result.num_rows, result.num_bad) == (200, 2)
    assert result.bad_rate == pytest.approx(0.01)
    assert [(e.position, e.label, e.value) for e in result.examples] == [
        (7, "2001-01-08", "61.5"),
        (31, "2001-02-01", "-3"),
    ]
    assert (
        result.message
        == "2 of 200 rows violate the expectation: 61.5 at 2001-01-08, -3 at 2001-02-01."
    )


def test_counts_agree_with_pandas(bars):
    """The reference is pandas, on random ranges and a column with empty cells."""
    rng = np.random.default_rng(7)
    bars.loc[bars.index[rng.random(200) < 0.1], "low"] = np.nan
    for _ in range(5):
        low, high = np.sort(rng.uniform(48, 62, 2))

        result = evaluate_one(bars, Between(column="low", low=low, high=high))

        values = bars["low"].dropna()
        assert result.num_rows == len(values)
        assert result.num_bad == int((~values.between(low, high)).sum())


@pytest.mark.parametrize(("mostly", "outcome"), [(0.9, "pass"), (0.95, "pass"), (0.96, "fail")])
def test_mostly_is_the_required_share_of_rows(bars, mostly, outcome):
    bars.iloc[:10, 0] = 99.0  # 5 % of 200

    assert (
        evaluate_one(bars, Between(column="low", low=50, high=60, mostly=mostly)).outcome == outcome
    )


def test_bounds_are_inclusive(bars):
    bars["volume"] = [0, 5] * 100

    assert evaluate_one(bars, Between(column="volume", low=0, high=5)).outcome == "pass"
    assert evaluate_one(bars, Between(column="volume", low=0, high=4)).outcome == "fail"


def test_greater_or_equal_allows_equality_and_reports_both_values(bars):
    bars.iloc[0, 1] = bars.iloc[0, 0]
    assert evaluate_one(bars, GreaterOrEqual(column="high", other="low")).outcome == "pass"

    bars.iloc[5, 0], bars.iloc[5, 1] = 55.0, 54.0
    result = evaluate_one(bars, GreaterOrEqual(column="high", other="low"))
    assert (result.outcome, result.num_bad) == ("fail", 1)
    assert result.examples[0].value == "54 and 55"


def test_violated_set_and_row_count_fail(bars):
    bars.iloc[3, 3] = "Z"

    assert evaluate_one(bars, InSet(column="venue", values=("A",))).examples[0].value == "'Z'"
    count = evaluate_one(bars, RowCount(low=201))
    assert (count.outcome, count.observed) == ("fail", 200)


def test_observed_standard_deviation_is_reported(bars):
    constant = bars.assign(low=55.0)

    result = evaluate_one(constant, StdBetween(column="low", low=0.1, high=9))

    assert (result.outcome, result.observed) == ("fail", 0.0)
    varying = evaluate_one(bars, StdBetween(column="low", low=0.1, high=9))
    assert varying.observed == pytest.approx(bars["low"].std(ddof=1))


@pytest.mark.parametrize(
    "expectation",
    [
        Between(column="low", low=50, high=60),
        GreaterOrEqual(column="high", other="low"),
        StdBetween(column="low", low=0, high=9),
        InSet(column="low", values=(1,)),
    ],
)
def test_missing_value_fails_the_implied_not_null(bars, expectation):
    """A range skips empty cells, so it implies a not-null expectation."""
    bars.iloc[9, 0] = np.nan

    report = evaluate(bars, (expectation,), suite="raw")

    implied = {r.expectation: r for r in report.results if r.implied}
    assert implied[NotNull(column="low")].outcome == "fail"
    assert implied[NotNull(column="low")].examples[0].label == "2001-01-10"
    assert not report.passed


def test_a_declared_not_null_is_not_measured_twice(bars):
    report = evaluate(bars, GOOD, suite="raw")

    assert [r.expectation for r in report.results].count(NotNull(column="low")) == 1
    assert not report.results[0].implied


@pytest.mark.parametrize("expectation", [e for e in GOOD if not isinstance(e, RowCount)])
def test_missing_column_is_unmeasurable(bars, expectation):
    column = expectation.column

    result = evaluate_one(bars.rename(columns={column: f"{column}_x"}), expectation)

    assert result.outcome == "unmeasurable"
    assert result.message == f"Column '{column}' is missing. Did you mean '{column}_x'?"


def test_a_duplicate_column_is_unmeasurable(bars):
    twice = pd.concat([bars, bars[["low"]]], axis=1)

    result = evaluate_one(twice, Between(column="low", low=0))

    assert (result.outcome, result.message) == (
        "unmeasurable",
        "The table has 2 columns named 'low'.",
    )


@pytest.mark.parametrize(
    "expectation",
    [Between(column="low", low=0), StdBetween(column="low", low=0, high=9)],
)
def test_text_among_numbers_is_unmeasurable(bars, expectation):
    """The engine raises here: its exception_info is nested, one per metric."""
    bars["low"] = bars["low"].astype(object)
    bars.iloc[2, 0] = "n/a"

    result = evaluate_one(bars, expectation)

    assert result.outcome == "unmeasurable"
    assert "Great Expectations raised: " in result.message


@pytest.mark.parametrize("expectation", [e for e in GOOD if not isinstance(e, RowCount)])
def test_an_empty_table_is_unmeasurable(bars, expectation):
    result = evaluate_one(bars.iloc[:0], expectation)

    assert (result.outcome, result.message) == ("unmeasurable", "The table has no rows.")


@pytest.mark.parametrize(
    "expectation",
    [
        Between(column="low", low=0),
        StdBetween(column="low", low=0, high=9),
        InSet(column="low", values=(1,)),
        GreaterOrEqual(column="high", other="low"),
    ],
)
def test_an_empty_column_is_unmeasurable(bars, expectation):
    """The engine alone would pass a range on a column without values."""
    result = evaluate_one(bars.assign(low=np.nan), expectation)
    assert result.outcome == "unmeasurable"
    if isinstance(expectation, GreaterOrEqual):
        assert result.message == "No row has values in all of the columns high, low."


def test_one_row_has_no_standard_deviation(bars):
    assert (
        evaluate_one(bars.iloc[:1], StdBetween(column="low", low=0, high=9)).outcome
        == "unmeasurable"
    )


def test_failed_takes_precedence_over_unmeasurable_and_neither_passes(bars):
    bad, missing = Between(column="low", low=99), NotNull(column="gone")

    assert evaluate(bars, (bad, missing), suite="s").outcome == "fail"
    assert evaluate(bars, (*GOOD, missing), suite="s").outcome == "unmeasurable"
    assert not evaluate(bars, (*GOOD, bad), suite="s").passed
    assert not evaluate(bars, (*GOOD, missing), suite="s").passed


def test_summary_separates_failed_and_unmeasurable(bars):
    bars.loc["2001-01-08", "low"] = 49.0
    report = evaluate(bars, (Between(column="low", low=50), NotNull(column="volum")), suite="s")

    assert report.summary == (
        "1 of 3 expectations pass on 200 rows. "
        "Failed: low is at least 50 in every row. 1 of 200 rows violate the expectation: "
        "49 at 2001-01-08. "
        "Could not be measured: volum has a value in every row. Column 'volum' is missing."
        " Did you mean 'volume'?"
    )


def test_workload_without_expectations_passes_with_a_note(bars):
    report = evaluate(bars, (), suite="s")

    assert report.passed
    assert report.summary == "No expectations are declared, so the values were not checked."


def test_labels_may_repeat_and_have_the_name_of_a_column(bars):
    frame = bars.reset_index(drop=True)
    frame.index = pd.Index(["r"] * 199 + ["last"], name="low")
    frame.iloc[199, 0] = -1.0

    result = evaluate_one(frame, Between(column="low", low=0))

    assert [(e.position, e.label) for e in result.examples] == [(199, "last")]


@pytest.mark.parametrize(("low", "high"), [(None, None), (2.0, 1.0), (float("nan"), 1.0)])
def test_an_invalid_range_is_rejected(bars, low, high):
    with pytest.raises(ContractError, match=r"column 'low' must have at least one bound.*got low="):
        evaluate(bars, (Between(column="low", low=low, high=high),), suite="raw")


@pytest.mark.parametrize(
    ("expectation", "sentence"),
    [
        (NotNull(column="a"), "a has a value in every row."),
        (Between(column="a", low=1), "a is at least 1 in every row."),
        (
            Between(column="a", high=2.5, mostly=0.99),
            "a is at most 2.5 in at least 0.99 of the rows.",
        ),
        (GreaterOrEqual(column="a", other="b"), "a is at least b in every row."),
        (InSet(column="a", values=("x", 2)), "a is one of 'x', 2 in every row."),
        (RowCount(low=1000), "The table has at least 1,000 rows."),
        (
            StdBetween(column="a", low=0.1, high=3),
            "The standard deviation of a is between 0.1 and 3.",
        ),
    ],
)
def test_every_kind_has_a_description(expectation, sentence):
    assert describe(expectation) == sentence


def test_violating_rows_are_the_expected_rows(bars):
    """An empty cell violates not-null only."""
    bars.iloc[[3, 7], 0] = 99.0, np.nan
    expectations = (NotNull(column="low"), Between(column="low", low=50, high=60), GOOD[3])

    broken = violating_rows(bars, expectations)

    assert np.flatnonzero(broken[expectations[0]]).tolist() == [7]
    assert np.flatnonzero(broken[expectations[1]]).tolist() == [3]
    assert np.flatnonzero(broken[expectations[2]]).tolist() == [3]


def test_violating_rows_of_text_among_numbers_are_refused(bars):
    bars["low"] = bars["low"].astype(object)
    bars.iloc[2, 0] = "n/a"

    with pytest.raises(ContractError, match=r"low is at least 0 .* could not be measured"):
        violating_rows(bars, (Between(column="low", low=0),))


@pytest.mark.exhaustive
def test_a_million_rows_of_thirteen_columns_take_less_than_20_times_describe():
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(1_000_000, 13)).round(3))
    frame.columns = [f"c{i}" for i in range(13)]
    suite = tuple(
        e
        for c in frame
        for e in (
            NotNull(column=c),
            Between(column=c, low=-9, high=9),
            StdBetween(column=c, low=0.5, high=2),
        )
    )
    evaluate(frame.head(10), suite, suite="warm")

    assert evaluate(frame, suite, suite="big").passed
    assert (
        relative_duration(lambda: evaluate(frame, suite, suite="big"), frame.describe) < 20
    )  # measured: 4


def test_suite_is_not_slower_than_separate_expectations(bars):
    """The setup of the engine is shared by all expectations."""
    frame = pd.concat([bars] * 25)

    assert evaluate(frame, GOOD, suite="raw").passed
    ratio = relative_duration(
        lambda: evaluate(frame, GOOD, suite="raw"),
        lambda: [evaluate(frame, (expectation,), suite="raw") for expectation in GOOD],
    )
    assert ratio < 1.5  # measured: 0.4
