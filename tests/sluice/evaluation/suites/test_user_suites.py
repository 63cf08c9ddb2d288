"""Users add suites by a query or a file; invalid queries and files are rejected (DATA-5)."""

import pandas as pd
import pytest

from sluice.base.errors import ContractError, SourceError
from sluice.evaluation.suites.suite import MAX_ROWS, Failures, FromFile, Query, make_suite
from sluice.evaluation.suites.user_suites import failures_suite, file_suite, query_suite
from tests.sluice.evaluation.suites.suite_samples import LABELS, make_frame


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        ("x > 20", [50]),
        ("x == 3 and y < 8", [3, 7]),
        ("index >= '2020-04-29'", [119]),
    ],
)
def test_a_query_selects_the_rows_that_satisfy_it(expression, rows):
    suite = query_suite("odd", expression, make_frame())

    assert suite.labels == tuple(LABELS[rows])
    assert suite.origin == Query(expression=expression)
    assert suite.rows[0].reason == f"satisfies {expression}"


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("x > 1e9", r"true for none of 120 rows\. x ranges from 0 to 30\."),
        ("z > 1", "cannot be evaluated.*'z'"),
        ("x >", "cannot be evaluated"),
        ("x > 'a'", "cannot be evaluated"),
        ("x < @frame.size", "cannot be evaluated"),
        ("x.nothing() > 1", "cannot be evaluated"),
        ("x + 1", "true or false for each row"),
        ("w = x", "cannot be evaluated"),
        ("1 < 2", "true or false for each row"),
    ],
)
def test_an_invalid_query_is_rejected(expression, message):
    with pytest.raises(ContractError, match=message):
        query_suite("odd", expression, make_frame())


def test_a_missing_value_satisfies_no_query():
    table = make_frame().astype({"x": "Float64"})
    table.iloc[50, 0] = pd.NA

    with pytest.raises(ContractError, match="true for none"):
        query_suite("odd", "x > 20", table)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_may_list_rows_in_any_order_and_dates_without_times(tmp_path, suffix):
    lines = pd.DataFrame({"row": ["2020-02-20", LABELS[3]], "reason": ["crash", None]})
    path = tmp_path / f"rows{suffix}"
    lines.to_csv(path) if suffix == ".csv" else lines.to_parquet(path)

    suite = file_suite("mine", path, make_frame().index)

    assert [(row.label, row.reason) for row in suite.rows] == [
        (LABELS[3], ""),
        (LABELS[50], "crash"),
    ]
    assert suite.origin == FromFile(file=path.name)


def test_numeric_and_text_labels_are_compared_as_text(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("row\n71\n0071\n")

    suite = file_suite("mine", path, pd.Index(["0071", "71", "x"]))
    assert suite.labels == ("0071", "71")
    path.write_text("row\n7\n")
    assert file_suite("mine", path, pd.RangeIndex(9)).labels == ("7",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("row\n2020-01-01\n1999-01-01\nnever\n", "2 of 3 are not: 1999-01-01, never"),
        ("row\n2020-01-01\n2020-01-01T00:00\n", "once, got 1 duplicate,"),
        ("day\n2020-01-01\n", "needs a column 'row'"),
        ("row\n", "got the columns row and 0 rows"),
    ],
)
def test_a_file_with_unknown_rows_is_rejected(tmp_path, text, message):
    path = tmp_path / "rows.csv"
    path.write_text(text)

    with pytest.raises(ContractError, match=message):
        file_suite("mine", path, make_frame().index)


@pytest.mark.parametrize("name", ["none.csv", "none.parquet", "broken.parquet", "rows.txt"])
def test_an_unreadable_file_is_rejected(tmp_path, name):
    (tmp_path / "broken.parquet").write_text("no table")

    with pytest.raises(SourceError):
        file_suite("mine", tmp_path / name, make_frame().index)


def test_rows_that_failed_in_production_form_a_suite():
    suite = failures_suite(
        "rollout-7", {"2020-02-20": "worse by 3"}, make_frame().index, source="rollout of version 7"
    )

    assert [(row.label, row.reason) for row in suite.rows] == [(LABELS[50], "worse by 3")]
    assert suite.origin == Failures(source="rollout of version 7")


@pytest.mark.parametrize("name", ["", "Hard", "../x", "1st", "a" * 65])
def test_an_invalid_suite_name_is_rejected(name):
    with pytest.raises(ContractError, match="name of a suite must consist of"):
        make_suite(name, {"a": ""}, Query(expression="x"))


@pytest.mark.parametrize("count", [0, MAX_ROWS + 1])
def test_an_empty_suite_and_too_many_rows_are_rejected(count):
    with pytest.raises(ContractError, match="1 to 10,000 rows"):
        make_suite("rows", {str(row): "" for row in range(count)}, Query(expression="x"))
