"""People add suites by a query or a file; what does not name rows is refused (DATA-5)."""

import pandas as pd
import pytest

from sluice.base.errors import ContractError, SourceError
from sluice.evaluation.suites.chosen_rows import failures_suite, file_suite, query_suite
from sluice.evaluation.suites.suite import MOST_ROWS, Failures, FromFile, Query, suite_of
from tests.sluice.evaluation.suites.suite_samples import LABELS, frame


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        ("x > 20", [50]),
        ("x == 3 and y < 8", [3, 7]),
        ("index >= '2020-04-29'", [119]),
    ],
)
def test_a_query_takes_the_rows_for_which_it_is_true(expression, rows):
    suite = query_suite("odd", expression, frame())

    assert suite.labels == tuple(LABELS[rows])
    assert suite.origin == Query(expression=expression)
    assert suite.rows[0].reason == f"meets {expression}"


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("x > 1e9", r"true for none of 120\. x runs from 0 to 30\."),
        ("z > 1", "needs a query that can be computed.*'z'"),
        ("x >", "needs a query that can be computed"),
        ("x > 'a'", "needs a query that can be computed"),
        ("x < @frame.size", "needs a query that can be computed"),
        ("x.nothing() > 1", "needs a query that can be computed"),
        ("x + 1", "true or false for each row"),
        ("w = x", "needs a query that can be computed"),
        ("1 < 2", "true or false for each row"),
    ],
)
def test_a_query_that_names_no_rows_is_refused(expression, message):
    with pytest.raises(ContractError, match=message):
        query_suite("odd", expression, frame())


def test_a_missing_cell_meets_no_query():
    table = frame().astype({"x": "Float64"})
    table.iloc[50, 0] = pd.NA

    with pytest.raises(ContractError, match="true for none"):
        query_suite("odd", "x > 20", table)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_names_rows_in_any_order_and_a_date_needs_no_time(tmp_path, suffix):
    given = pd.DataFrame({"row": ["2020-02-20", LABELS[3]], "reason": ["crash", None]})
    path = tmp_path / f"rows{suffix}"
    given.to_csv(path) if suffix == ".csv" else given.to_parquet(path)

    suite = file_suite("mine", path, frame().index)

    assert [(row.label, row.reason) for row in suite.rows] == [
        (LABELS[3], ""),
        (LABELS[50], "crash"),
    ]
    assert suite.origin == FromFile(file=path.name)


def test_labels_that_are_numbers_or_text_are_found_as_they_stand(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("row\n71\n0071\n")

    suite = file_suite("mine", path, pd.Index(["0071", "71", "x"]))
    assert suite.labels == ("0071", "71")
    path.write_text("row\n7\n")
    assert file_suite("mine", path, pd.RangeIndex(9)).labels == ("7",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("row\n2020-01-01\n1999-01-01\nnever\n", "2 of 3 are not in it: 1999-01-01, never"),
        ("row\n2020-01-01\n2020-01-01T00:00\n", "once, got 1 repeats"),
        ("day\n2020-01-01\n", "needs a column 'row'"),
        ("row\n", "got the columns row and 0 lines"),
    ],
)
def test_a_file_that_names_no_rows_of_the_frame_is_refused(tmp_path, text, message):
    path = tmp_path / "rows.csv"
    path.write_text(text)

    with pytest.raises(ContractError, match=message):
        file_suite("mine", path, frame().index)


@pytest.mark.parametrize("name", ["none.csv", "none.parquet", "broken.parquet", "rows.txt"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path, name):
    (tmp_path / "broken.parquet").write_text("no table")

    with pytest.raises(SourceError):
        file_suite("mine", tmp_path / name, frame().index)


def test_rows_that_failed_in_use_make_a_suite():
    suite = failures_suite(
        "rollout-7", {"2020-02-20": "worse by 3"}, frame().index, source="rollout of version 7"
    )

    assert [(row.label, row.reason) for row in suite.rows] == [(LABELS[50], "worse by 3")]
    assert suite.origin == Failures(source="rollout of version 7")


@pytest.mark.parametrize("name", ["", "Hard", "../x", "1st", "a" * 65])
def test_a_name_that_is_no_name_is_refused(name):
    with pytest.raises(ContractError, match="name must be lower-case"):
        suite_of(name, {"a": ""}, Query(expression="x"))


@pytest.mark.parametrize("count", [0, MOST_ROWS + 1])
def test_no_rows_and_too_many_are_refused(count):
    with pytest.raises(ContractError, match="1 to 10,000 rows"):
        suite_of("rows", {str(at): "" for at in range(count)}, Query(expression="x"))
