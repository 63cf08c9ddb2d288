"""Expectation classes of Great Expectations are evaluated, or reported as unmeasurable."""

import sys
import warnings

import pandas as pd
import pytest

from sluice.base.errors import ContractError
from sluice.checks.data_docs import expectations_page
from sluice.checks.expectations import evaluate, validate_table
from sluice.data.expectations import EngineExpectation, NotNull, RowCount, as_expectations
from sluice.workloads.load import build_workload
from tests.support.synthetic import SineWorkload

pytestmark = pytest.mark.slow  # the engine's import takes 2 to 4 s

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import great_expectations as gx
    from great_expectations.expectations import core
    from great_expectations.expectations.row_conditions import Column

gxe = gx.expectations

TABLE = pd.DataFrame(
    {
        "id": [1, 2, 3, 4],
        "x": [0.5, 1.5, 2.5, 3.5],
        "y": [1.0, 2.0, 3.0, 4.0],
        "word": ["aa", "bb", "cc", "dd"],
        "day": ["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04"],
        "json": ['{"a": 1}'] * 4,
        "none": [None] * 4,
    }
)
PASSING = [
    gxe.ExpectColumnDistinctValuesToBeInSet(column="word", value_set=["aa", "bb", "cc", "dd"]),
    gxe.ExpectColumnDistinctValuesToContainSet(column="word", value_set=["aa"]),
    gxe.ExpectColumnDistinctValuesToEqualSet(column="word", value_set=["aa", "bb", "cc", "dd"]),
    gxe.ExpectColumnKLDivergenceToBeLessThan(
        column="word",
        partition_object={"values": ["aa", "bb", "cc", "dd"], "weights": [0.25] * 4},
        threshold=0.1,
    ),
    gxe.ExpectColumnMaxToBeBetween(column="x", min_value=3, max_value=4),
    gxe.ExpectColumnMeanToBeBetween(column="x", min_value=1.9, max_value=2.1),
    gxe.ExpectColumnMedianToBeBetween(column="x", min_value=1, max_value=3),
    gxe.ExpectColumnMinToBeBetween(column="x", min_value=0, max_value=1),
    gxe.ExpectColumnMostCommonValueToBeInSet(column="json", value_set=['{"a": 1}']),
    gxe.ExpectColumnPairValuesAToBeGreaterThanB(column_A="y", column_B="x"),
    gxe.ExpectColumnPairValuesToBeEqual(column_A="id", column_B="y"),
    gxe.ExpectColumnPairValuesToBeInSet(
        column_A="id", column_B="word", value_pairs_set=[(1, "aa"), (2, "bb"), (3, "cc"), (4, "dd")]
    ),
    gxe.ExpectColumnProportionOfNonNullValuesToBeBetween(column="x", min_value=1),
    gxe.ExpectColumnProportionOfUniqueValuesToBeBetween(column="id", min_value=1, max_value=1),
    gxe.ExpectColumnQuantileValuesToBeBetween(
        column="x", quantile_ranges={"quantiles": [0.5], "value_ranges": [[1, 3]]}
    ),
    gxe.ExpectColumnStdevToBeBetween(column="x", min_value=1, max_value=2),
    gxe.ExpectColumnSumToBeBetween(column="x", min_value=7, max_value=9),
    gxe.ExpectColumnToExist(column="x"),
    gxe.ExpectColumnUniqueValueCountToBeBetween(column="id", min_value=4, max_value=4),
    gxe.ExpectColumnValueLengthsToBeBetween(column="word", min_value=1, max_value=2),
    gxe.ExpectColumnValueLengthsToEqual(column="word", value=2),
    gxe.ExpectColumnValueZScoresToBeLessThan(column="x", threshold=3, double_sided=True),
    gxe.ExpectColumnValuesToBeBetween(column="x", min_value=0, max_value=4, mostly=0.9),
    gxe.ExpectColumnValuesToBeDateutilParseable(column="day"),
    gxe.ExpectColumnValuesToBeDecreasing(column="none_sum_b"),
    gxe.ExpectColumnValuesToBeIncreasing(column="id"),
    gxe.ExpectColumnValuesToBeInSet(column="word", value_set=["aa", "bb", "cc", "dd"]),
    gxe.ExpectColumnValuesToBeJsonParseable(column="json"),
    gxe.ExpectColumnValuesToBeNull(column="none"),
    gxe.ExpectColumnValuesToBeOfType(column="x", type_="float64"),
    gxe.ExpectColumnValuesToBeInTypeList(column="x", type_list=["float64"]),
    gxe.ExpectColumnValuesToBeUnique(column="id"),
    gxe.ExpectColumnValuesToMatchJsonSchema(column="json", json_schema={"type": "object"}),
    gxe.ExpectColumnValuesToMatchRegex(column="word", regex="^[a-d]{2}$"),
    gxe.ExpectColumnValuesToMatchRegexList(column="word", regex_list=["^[ab]", "^[cd]"]),
    gxe.ExpectColumnValuesToMatchStrftimeFormat(column="day", strftime_format="%Y-%m-%d"),
    gxe.ExpectColumnValuesToNotBeInSet(column="word", value_set=["zz"]),
    gxe.ExpectColumnValuesToNotBeNull(column="x"),
    gxe.ExpectColumnValuesToNotMatchRegex(column="word", regex="^z"),
    gxe.ExpectColumnValuesToNotMatchRegexList(column="word", regex_list=["^z", "^y"]),
    gxe.ExpectCompoundColumnsToBeUnique(column_list=["id", "word"]),
    gxe.ExpectMulticolumnSumToEqual(column_list=["none_sum_a", "none_sum_b"], sum_total=5),
    gxe.ExpectSelectColumnValuesToBeUniqueWithinRecord(column_list=["x", "y"]),
    gxe.ExpectTableColumnCountToBeBetween(min_value=1, max_value=20),
    gxe.ExpectTableColumnCountToEqual(value=9),
    gxe.ExpectTableColumnsToMatchSet(column_set=["x", "y"], exact_match=False),
    gxe.ExpectTableRowCountToBeBetween(min_value=1, max_value=10),
    gxe.ExpectTableRowCountToEqual(value=4),
]
WIDE = TABLE.assign(none_sum_a=[1, 2, 3, 4], none_sum_b=[4, 3, 2, 1])


@pytest.mark.parametrize("expectation", PASSING, ids=lambda e: type(e).__name__)
def test_passing_expectation_passes_and_is_rendered(expectation):
    validation = validate_table(WIDE, [expectation], suite="own")

    (result,) = validation.report.results
    assert result.outcome == "pass", result.message
    assert type(expectation).__name__ in result.sentence
    assert 'class="ge-section' in expectations_page(validation, title="own", digest="d" * 64)


@pytest.mark.parametrize(
    ("expectation", "message"),
    [
        (
            gxe.ExpectColumnValuesToMatchRegex(column="word", regex="^a"),
            "3 of 4 rows violate the expectation: 'bb'",
        ),
        (gxe.ExpectColumnMeanToBeBetween(column="x", max_value=1), "Measured 2"),
        (gxe.ExpectColumnToExist(column="absent"), ""),
        (gxe.ExpectTableColumnCountToEqual(value=3), "Measured 7"),
        (
            gxe.ExpectCompoundColumnsToBeUnique(column_list=["json", "none"]),
            "rows violate the expectation",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_failed_expectation_reports_the_measurement(expectation, message):
    (result,) = evaluate(TABLE, [expectation], suite="own").results

    assert result.outcome == "fail"
    assert message in result.message


def test_an_unmeasurable_expectation_reports_the_reason():
    query = gxe.UnexpectedRowsExpectation(unexpected_rows_query="select * from {batch}")
    (missing, sql) = evaluate(
        TABLE,
        [gxe.ExpectColumnValuesToBeUnique(column="idd"), query],
        suite="own",
    ).results

    assert missing.outcome == sql.outcome == "unmeasurable"
    assert missing.message == "Column 'idd' is missing. Did you mean 'id'?"
    assert "UnexpectedRowsExpectation" in sql.sentence
    assert "Great Expectations raised: " in sql.message


def test_row_condition_is_applied():
    expectation = gxe.ExpectColumnValuesToBeInSet(
        column="word", value_set=["aa"], row_condition=Column("id") == 1
    )

    (result,) = evaluate(TABLE, [expectation], suite="own").results

    assert result.outcome == "pass", result.message


class ExpectEvenLengths(gxe.ExpectColumnValueLengthsToEqual):
    """An expectation class of a user."""

    value: int = 2


def test_a_custom_expectation_class_works():
    (result,) = evaluate(TABLE, [ExpectEvenLengths(column="word")], suite="own").results

    assert result.outcome == "pass", result.message
    assert result.expectation.expectation == f"{__name__}:ExpectEvenLengths"


def test_own_and_engine_expectations_can_be_combined():
    report = evaluate(
        TABLE,
        [RowCount(low=2), gxe.ExpectColumnValuesToBeUnique(column="id"), NotNull(column="x")],
        suite="own",
    )

    assert [type(r.expectation).__name__ for r in report.results] == [
        "RowCount",
        "EngineExpectation",
        "NotNull",
    ]
    assert report.passed


def test_every_core_class_is_covered():
    covered = {type(expectation).__name__ for expectation in PASSING} | {
        "UnexpectedRowsExpectation"
    }
    known = {
        name
        for name, cls in vars(core).items()
        if isinstance(cls, type) and (name.startswith("Expect") or name.endswith("Expectation"))
    }

    assert known - covered == {
        "ExpectColumnTypeToBe",  # for SQL and Spark
        "ExpectColumnValuesToMatchLikePattern",
        "ExpectColumnValuesToMatchLikePatternList",
        "ExpectColumnValuesToNotBeOutliers",
        "ExpectColumnValuesToNotMatchLikePattern",
        "ExpectColumnValuesToNotMatchLikePatternList",
        "ExpectMulticolumnValuesToBeEqual",
        "ExpectMulticolumnValuesToBeUnique",  # replaced by the variant within a record
        "ExpectQueryResultsToMatchComparison",
        "ExpectTableColumnsToMatchOrderedList",
        "ExpectTableRowCountToEqualOtherTable",
    }


class Expecting(SineWorkload):
    raw_expectations = (gxe.ExpectColumnToExist(column="x"),)


class Wrong(SineWorkload):
    raw_expectations = ("x > 0",)


def test_workload_stores_engine_expectations_as_records():
    workload = build_workload(Expecting, Expecting.settings_type(), path="here:Expecting")

    (record,) = workload.raw_expectations
    assert isinstance(record, EngineExpectation)
    assert record.keywords == {"column": "x", "severity": "critical"}
    assert as_expectations(workload.raw_expectations, where="again") == workload.raw_expectations


def test_other_objects_are_rejected():
    with pytest.raises(
        ContractError, match=r"here:Wrong: raw_expectations must contain .* 'x > 0'"
    ):
        build_workload(Wrong, Wrong.settings_type(), path="here:Wrong")


def test_expectations_module_does_not_import_the_engine():
    assert "great_expectations" not in sys.modules["sluice.data.expectations"].__dict__
