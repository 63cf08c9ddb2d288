"""Validation of tables against a schema (SCH-1)."""

import numpy as np
import pandas as pd
import pytest

from sluice.base.errors import ContractError, SchemaError
from sluice.data.schema import Column, Schema
from sluice.data.validation import nearest_name, validate_schema

SCHEMA = Schema(
    columns=(Column(name="close"), Column(name="volume"), Column(name="note", kind="string")),
    index_name="date",
    index_kind="datetime",
)


def make_table(rows: int = 6) -> pd.DataFrame:
    index = pd.date_range("2020-01-01", periods=rows, name="date")
    return pd.DataFrame(
        {"close": np.arange(rows) + 1.0, "volume": np.arange(rows), "note": ["x"] * rows}, index
    )


def get_error_message(frame: pd.DataFrame, schema: Schema = SCHEMA) -> str:
    with pytest.raises(SchemaError) as caught:
        validate_schema(frame, schema, "raw")
    return str(caught.value)


def test_valid_table_with_additional_columns_passes_unchanged():
    good = make_table().assign(more=1.0)

    validate_schema(good, SCHEMA, "raw")

    assert good.equals(make_table().assign(more=1.0))


def test_missing_column_error_lists_nearest_available_and_shape():
    message = get_error_message(make_table().rename(columns={"close": "Close", "volume": "vol"}))

    assert message.startswith("raw: ")
    assert "'close' is missing (nearest: 'Close')" in message
    assert "'volume' is missing (nearest: 'vol')" in message
    assert "Available columns: Close, note, vol." in message
    assert "Rows and columns: 6 x 3." in message


def test_schema_error_has_cause_and_fix():
    with pytest.raises(SchemaError) as caught:
        validate_schema(make_table().drop(columns="close"), SCHEMA, "raw")

    assert "source changed" in caught.value.cause
    assert "declared schema" in caught.value.fix


def test_every_problem_is_reported_at_once():
    frame = make_table().drop(columns="volume").rename_axis("day")
    frame.iloc[3, 0] = np.nan

    message = get_error_message(frame[::-1])

    for part in ("'volume' is missing", "named 'date', got 'day'", "no nulls", "must be sorted"):
        assert part in message


def test_nulls_are_counted_and_the_first_is_located():
    frame = make_table()
    frame.loc[["2020-01-03", "2020-01-05"], "close"] = np.nan

    assert "got 2 of 6, first at row 2 (label 2020-01-03" in get_error_message(frame)


def test_nullable_column_allows_nulls_but_not_infinity():
    schema = Schema(columns=(Column(name="close", nullable=True),))
    frame = make_table()
    frame.iloc[1, 0] = np.nan
    validate_schema(frame, schema, "raw")

    frame.iloc[4, 0] = -np.inf
    assert "must be finite, got 1 infinite of 6, first at row 4" in get_error_message(frame, schema)


def test_text_in_float_column_is_shown_with_its_row():
    frame = make_table()
    frame["close"] = ["1", "2", "n/a", "4", "5", "6"]

    message = get_error_message(frame)

    assert "'close' must be float" in message
    assert "'n/a' first at row 2" in message


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("float", [1, 2], ["a", "b"]),
        ("int", [1, 2], [1.0, 2.0]),
        ("bool", [True, False], [0, 1]),
        ("string", ["a", "b"], [1, 2]),
        ("datetime", pd.to_datetime(["2020-01-01", "2020-01-02"]), ["2020-01-01", "2020-01-02"]),
    ],
)
def test_each_kind_accepts_its_type_and_rejects_others(kind, good, bad):
    schema = Schema(columns=(Column(name="x", kind=kind),))

    validate_schema(pd.DataFrame({"x": good}), schema, "raw")
    assert f"'x' must be {kind}" in get_error_message(pd.DataFrame({"x": bad}), schema)


def test_unsorted_index_error_names_the_first_label_out_of_order():
    frame = make_table().iloc[[0, 1, 4, 2, 3, 5]]

    assert (
        "first label out of order: 2020-01-03 00:00:00 at row 3, after 2020-01-05"
        in get_error_message(frame)
    )


def test_repeated_index_label_is_reported():
    frame = make_table().iloc[[0, 1, 1, 2, 2]]

    assert "2 repeated labels, first at row 2 (label 2020-01-02" in get_error_message(frame)


def test_index_with_wrong_name_and_type_is_rejected():
    message = get_error_message(make_table().reset_index(drop=True))

    assert "named 'date', got no name" in message
    assert "index must be datetime, got int64" in message


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        (["2018-02-28", "2018-02-30", "2018-03-01"], "'2018-02-30' at row 1, which is not a date"),
        (["01/02/2018", "02/02/2018", "01/03/2018"], "'01/02/2018' at row 0, which is not a date"),
        (["2018-02-01", "2018-02-02", "2018-02-03"], "'2018-02-01' at row 0 (correct"),
        (["a", "b", "c"], "'a' at row 0, which is not a date"),
    ],
)
def test_text_index_must_be_declared_or_unsorted(labels, shown):
    frame = pd.DataFrame({"close": [1.0, 2.0, 3.0]}, pd.Index(labels))
    columns = (Column(name="close"),)

    message = get_error_message(frame, Schema(columns=columns))
    assert f"dates or numbers to be in order, got text: {shown}" in message
    assert "index_kind='string'" in message
    assert "must be sorted" not in message
    datetime_message = get_error_message(frame, Schema(columns=columns, index_kind="datetime"))
    assert f"must be datetime, got str: {shown.partition(' (')[0]}" in datetime_message
    validate_schema(frame, Schema(columns=columns, index_sorted=False), "raw")
    if labels[0] != "01/02/2018":
        validate_schema(frame, Schema(columns=columns, index_kind="string"), "raw")


def test_index_with_a_null_is_rejected():
    frame = make_table()
    frame.index = frame.index.where(frame.index != "2020-01-04").rename("date")

    assert "index must have no nulls, first at row 3" in get_error_message(frame)


def test_a_column_that_occurs_twice_is_rejected():
    frame = make_table()
    frame.insert(0, "close", 1.0, allow_duplicates=True)

    assert "'close' occurs 2 times" in get_error_message(frame)


def test_empty_table_is_reported_with_shape_and_no_columns():
    assert "Available columns: none. Rows and columns: 0 x 0." in get_error_message(pd.DataFrame())


def test_nearest_name_is_none_without_a_similar_name():
    assert nearest_name("close", ["zzz"]) is None


DAYS = pd.DataFrame(
    {"open": [1.0, 2.0], "close": [2.0, 1.0]},
    index=pd.DatetimeIndex(["2024-01-01", "2024-01-02"], name="day"),
)


def test_named_index_satisfies_a_required_column():
    columns = (Column(name="open"), Column(name="day", kind="datetime"))

    assert validate_schema(DAYS, Schema(columns=columns), "raw") is None


def test_type_of_an_index_required_as_column_is_checked():
    with pytest.raises(SchemaError, match="column 'day' must be float, got datetime64"):
        validate_schema(DAYS, Schema(columns=(Column(name="day"),)), "raw")


def test_multi_index_level_satisfies_a_required_column():
    frame = DAYS.assign(asset="x").set_index("asset", append=True)

    assert validate_schema(frame, ["asset", "day", "open"], "raw") is None
    with pytest.raises(SchemaError, match="'assets' is missing"):
        validate_schema(frame, ["assets"], "raw")


@pytest.mark.parametrize("names", [["open", "close"], ("day",), []])
def test_a_plain_list_of_names_is_accepted(names):
    assert validate_schema(DAYS, names, "raw") is None


def test_missing_name_of_a_list_is_reported_with_available_columns():
    with pytest.raises(SchemaError) as caught:
        validate_schema(DAYS, ["clos", "dag", "volume"], "raw")

    message = str(caught.value)
    assert "column 'clos' is missing (nearest: 'close')" in message
    assert "column 'dag' is missing (nearest: 'day')" in message
    assert "Available columns: close, open. Index: 'day'. Rows and columns: 2 x 2." in message


@pytest.mark.parametrize("names", ["open", [1, 2]])
def test_invalid_list_of_names_is_rejected(names):
    with pytest.raises(ContractError, match="a Schema or a list of column names"):
        validate_schema(DAYS, names, "raw")
