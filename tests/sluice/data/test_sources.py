"""Loading of raw rows from files, and the errors for unreadable files (DATA-2)."""

import itertools
import os
import sys

import fsspec
import numpy as np
import pandas as pd
import pytest

from sluice.base.errors import SourceError
from sluice.data.asset_rows import provide_asset
from sluice.data.schema import Column, Schema
from sluice.data.sources import (
    AssetSource,
    CsvSource,
    JsonLinesSource,
    PackagedBars,
    ParquetSource,
    load_rows,
)

SCHEMA = Schema(
    columns=(Column(name="close"), Column(name="volume")),
    index_name="date",
    index_kind="datetime",
)
TEXT = "date,close,volume\n2020-01-02,1.5,10\n2020-01-03,2.5,20\n2020-01-06,3.5,30\n"


@pytest.fixture
def write_csv(tmp_path):
    """Return a function that writes a CSV file and returns its source."""
    numbers = itertools.count()

    def write(text: str | bytes, **settings: object) -> CsvSource:
        path = tmp_path / f"bars{next(numbers)}.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return CsvSource(uri=str(path), **settings)

    return write


def get_error_message(source) -> str:
    with pytest.raises(SourceError) as caught:
        load_rows(source, schema=SCHEMA)
    return str(caught.value)


def test_packaged_bars_have_known_shape_and_values():
    rows = load_rows(PackagedBars(), schema=SCHEMA)

    assert rows.shape == (5031, 5)
    assert list(rows.columns) == ["open", "high", "low", "close", "volume"]
    assert rows.index.name == "date"
    assert rows.index[0] == pd.Timestamp("1999-01-04")
    assert rows.loc["1999-01-04", "close"] == pytest.approx(1228.099976)
    assert rows["volume"].dtype == np.float64


def test_packaged_nasdaq_bars_are_loaded():
    assert len(load_rows(PackagedBars(name="nasdaq"), schema=SCHEMA)) == 5031


def test_csv_numbers_and_dates_are_parsed(write_csv):
    rows = load_rows(write_csv(TEXT), schema=SCHEMA)

    assert rows.index.equals(pd.DatetimeIndex(["2020-01-02", "2020-01-03", "2020-01-06"]))
    assert rows.index.name == "date"
    assert rows["close"].tolist() == [1.5, 2.5, 3.5]
    assert rows["volume"].dtype == np.float64


def test_csv_index_column_names_separator_and_date_format_are_configurable(write_csv):
    text = "Day;Last;Vol\n02/01/2020;1.5;10\n03/02/2020;2.5;20\n"
    source = write_csv(
        text,
        index="Day",
        rename={"Last": "close", "Vol": "volume"},
        separator=";",
        date_format="%d/%m/%Y",
    )

    rows = load_rows(source, schema=SCHEMA)

    assert list(rows.columns) == ["close", "volume"]
    assert rows.index.name == "date"
    assert rows.index[1] == pd.Timestamp(2020, 2, 3)


def test_csv_numbers_with_groups_and_a_decimal_comma_are_parsed(write_csv):
    text = (
        "date;close;volume;day;code\n"
        "2020-01-02;1.234,5;1.000;31.12.2024;1.2\n"
        "2020-01-03;-7,25;20;01.01.2025;1.234\n"
        "2020-01-06;;1.234.567;02.01.2025;01.234\n"
    )
    source = write_csv(text, separator=";", decimal=",", thousands=".")

    rows = load_rows(source, schema=SCHEMA)

    assert rows["close"].tolist()[:2] == [1234.5, -7.25]
    assert rows["close"].isna().tolist() == [False, False, True]
    assert rows["volume"].tolist() == [1000, 20, 1_234_567]
    assert rows["day"].tolist() == ["31.12.2024", "01.01.2025", "02.01.2025"]
    assert rows["code"].tolist() == ["1.2", "1.234", "01.234"]  # no groups of three digits


def test_groups_are_read_in_a_long_file_whose_first_numbers_have_none(write_csv):
    """Pandas infers the type of a column separately for each part of a long file."""
    text = "date;close;volume\n" + "2020-01-02;7;7\n" * 300_000 + "2020-01-03;1.000;2.000\n"
    source = write_csv(text, separator=";", decimal=",", thousands=".")

    rows = load_rows(source, schema=Schema(columns=(Column(name="close"),)))

    assert rows["close"].iloc[[0, -1]].tolist() == [7, 1000]
    assert rows["volume"].iloc[[0, -1]].tolist() == [7, 2000]


def test_categories_of_a_long_file_do_not_depend_on_their_position(write_csv):
    text = "date,close,code\n" + "2020-01-02,1,01\n" * 300_000 + "2020-01-03,2,A1\n"

    rows = load_rows(write_csv(text), schema=SCHEMA)

    assert rows["code"].unique().tolist() == ["01", "A1"]


@pytest.mark.parametrize(
    ("first", "thousands", "bad"),
    [("1.000", ".", "2.5"), ("7", None, "1.234"), ("1", ".", "\u0661\u0662\u0663")],
)
def test_numbers_in_another_format_than_the_settings_are_refused(write_csv, first, thousands, bad):
    text = f"date;close\n2020-01-02;{first}\n2020-01-03;{bad}\n2020-01-06;x\n"

    message = get_error_message(write_csv(text, separator=";", decimal=",", thousands=thousands))

    assert f"got {bad!r} at line 3 (2 such values of 3)" in message


def test_grouped_numbers_may_end_in_a_space_and_have_any_column_name(write_csv):
    source = write_csv("self;close\n1.000;1.234\u00a0\n2;3\n", index=None, decimal=",")
    source = source.model_copy(update={"separator": ";", "thousands": "."})

    rows = load_rows(source, schema=Schema(columns=()))

    assert rows.to_dict("list") == {"self": [1000, 2], "close": [1234, 3]}


def test_csv_markers_of_missing_values_and_spaces_are_configurable(write_csv):
    text = "date, close, volume\n2020-01-02, ?, 10\n2020-01-03, 2.5, --\n"
    source = write_csv(text, missing=["?", "--"], skip_spaces=True)

    rows = load_rows(source, schema=SCHEMA)

    assert rows["close"].isna().tolist() == [True, False]
    assert rows["volume"].isna().tolist() == [False, True]
    assert "column 'close' must be numeric, got '?'" in get_error_message(
        write_csv(text, missing=("--",), skip_spaces=True)
    )


def test_csv_index_stays_text_with_groups(write_csv):
    source = write_csv("id,close\n1 234,1 000.5\n5,2\n", index="id", thousands=" ")

    rows = load_rows(source, schema=Schema(columns=(Column(name="close"),)))

    assert rows.index.tolist() == ["1 234", "5"]
    assert rows["close"].tolist() == [1000.5, 2]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "cp1252", "utf-16"])
def test_csv_in_another_encoding_is_read(write_csv, encoding):
    text = "date,gr\u00f6\u00dfe,close\n2020-01-02,s\u00fc\u00df,1.5\n"

    rows = load_rows(write_csv(text.encode(encoding), encoding=encoding), schema=SCHEMA)

    assert rows["gr\u00f6\u00dfe"].tolist() == ["s\u00fc\u00df"]
    assert rows["close"].tolist() == [1.5]


def test_csv_in_a_wrong_encoding_names_the_setting(write_csv):
    content = "date,gr\u00f6\u00dfe,close\n2020-01-02,1,2\n".encode("cp1252")

    message = get_error_message(write_csv(content))

    assert "another encoding than utf-8" in message
    assert "set 'separator' or 'encoding'" in message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoding": "utf-9"}, "must be a text encoding of Python"),
        ({"encoding": "base64"}, "must be a text encoding of Python"),
        ({"decimal": ",", "thousands": ","}, "'thousands' must differ from 'decimal'"),
    ],
)
def test_contradictory_csv_formats_are_refused(write_csv, settings, message):
    with pytest.raises(ValueError, match=message):
        write_csv(TEXT, **settings)


def test_rows_are_returned_unchanged(write_csv):
    rows = load_rows(
        write_csv("date,close\n2020-01-03,1\n2020-01-02,\n2020-01-02,3\n"), schema=SCHEMA
    )

    assert rows.index.day.tolist() == [3, 2, 2]
    assert rows["close"].isna().tolist() == [False, True, False]


@pytest.mark.parametrize("stored", ["index", "column"])
def test_parquet_index_may_be_stored_as_index_or_column(tmp_path, write_csv, stored):
    expected = load_rows(write_csv(TEXT), schema=SCHEMA)
    path = tmp_path / "bars.parquet"
    (expected if stored == "index" else expected.reset_index()).to_parquet(path)

    rows = load_rows(ParquetSource(uri=str(path)), schema=SCHEMA)

    pd.testing.assert_frame_equal(rows, expected)


def test_fsspec_path_is_read():
    with fsspec.open("memory://folder/bars.csv", "w") as file:
        file.write(TEXT)

    assert len(load_rows(CsvSource(uri="memory://folder/bars.csv"), schema=SCHEMA)) == 3
    assert "Did you mean 'bars.csv'?" in get_error_message(CsvSource(uri="memory://folder/bar.csv"))


def test_missing_file_error_suggests_the_nearest_name(write_csv):
    source = write_csv(TEXT)
    misspelled = source.model_copy(update={"uri": source.uri.replace("bars0", "bras0")})

    message = get_error_message(misspelled)

    assert f"There is no file {misspelled.uri}." in message
    assert "Did you mean 'bars0.csv'?" in message


def test_missing_folder_is_reported(tmp_path):
    assert "cannot be listed" in get_error_message(CsvSource(uri=str(tmp_path / "no" / "bars.csv")))


def test_a_folder_and_an_unknown_scheme_are_rejected(tmp_path):
    assert "cannot be read" in get_error_message(CsvSource(uri=str(tmp_path)))
    assert "cannot be opened" in get_error_message(CsvSource(uri="nosuch://bars.csv"))


def test_missing_s3_package_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)

    message = get_error_message(CsvSource(uri="s3://bucket/bars.csv"))

    assert message.endswith("pip install '.[s3]'")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_file_without_read_permission_is_rejected(write_csv):
    source = write_csv(TEXT)
    os.chmod(source.uri, 0)

    assert "permission to read it" in get_error_message(source)


@pytest.mark.parametrize("text", ["", "\n\n", "date,close,volume\n"])
def test_a_file_without_rows_is_rejected(write_csv, text):
    assert "at least one row" in get_error_message(write_csv(text))


def test_an_asset_without_rows_is_rejected():
    with provide_asset(("bars",), pd.DataFrame({"close": []})):
        message = get_error_message(AssetSource(key=("bars",)))

    assert "The asset bars must return at least one row" in message
    assert "'uri'" not in message


@pytest.mark.parametrize("text", [TEXT + "2020-01-07,1,2,3,4\n", b"PAR1\xff\xfe\x00\x81,\n\x9d\n"])
def test_non_csv_file_is_rejected(write_csv, text):
    assert "cannot be parsed as CSV" in get_error_message(write_csv(text))


def test_non_parquet_file_is_rejected(tmp_path):
    path = tmp_path / "bars.parquet"
    path.write_text(TEXT)

    assert "cannot be read as Parquet" in get_error_message(ParquetSource(uri=str(path)))


def test_text_in_numeric_column_is_reported_with_line_and_value(write_csv):
    message = get_error_message(
        write_csv("date,close\n2020-01-02,1\n\n2020-01-03,two\n2020-01-06,x\n")
    )

    assert "column 'close' must be numeric, got 'two' at line 4 (2 such values of 3)" in message


def test_reported_line_counts_line_breaks_in_quoted_values(write_csv):
    text = 'date,note,close\n\n2020-01-02,"two\n\nlines",1\n   \n2020-01-03,"x\ny",two\n'

    assert "got 'two' at line 7 " in get_error_message(write_csv(text))


def test_reported_line_counts_line_breaks_after_skipped_spaces(write_csv):
    text = 'date, note, close\n2020-01-02, "two\nlines", 1\n2020-01-03, x, two\n'

    assert "got 'two' at line 4 " in get_error_message(write_csv(text, skip_spaces=True))


def test_row_is_reported_if_the_csv_module_cannot_count_lines(write_csv):
    text = f"date,note,close\n2020-01-02,{'x' * 200_000},two\n"

    assert "got 'two' at row 0, counted from 0 " in get_error_message(write_csv(text))


def test_a_parse_error_ends_with_one_full_stop(write_csv):
    assert "saw 5. " in get_error_message(write_csv(TEXT + "2020-01-07,1,2,3,4\n"))


def test_number_with_thousands_separator_is_rejected(write_csv):
    assert "got '1,228.5' at line 2" in get_error_message(
        write_csv('date,close\n2020-01-02,"1,228.5"\n')
    )


def test_text_in_numeric_parquet_column_is_reported_with_its_row(tmp_path):
    path = tmp_path / "bars.parquet"
    pd.DataFrame({"date": ["2020-01-02", "2020-01-03"], "close": ["1", "?"]}).to_parquet(path)

    assert "got '?' at row 1, counted from 0" in get_error_message(ParquetSource(uri=str(path)))


@pytest.mark.parametrize("bad", ["31/12/2020", "2020-13-01", "soon", ""])
def test_unparsable_date_is_reported_with_its_line(write_csv, bad):
    message = get_error_message(write_csv(f"date,close\n2020-01-02,1\n{bad},2\n"))

    assert "column 'date' must contain dates" in message
    assert "at line 3" in message


@pytest.mark.parametrize(
    ("second", "date_format"),
    [
        ("2020-01-03T01:00:00+02:00", None),
        ("2020-01-02 23:00:00Z", None),
        ("20200102T2300+00", None),
        ("2020-01-02 17:30:00-0530", "%Y-%m-%d %H:%M:%S%z"),
    ],
)
def test_times_with_utc_offsets_are_converted_to_utc(write_csv, second, date_format):
    text = f"date,close\n2020-01-02 00:00:00+0100,1\n{second},2\n"

    rows = load_rows(write_csv(text, date_format=date_format), schema=SCHEMA)

    expected = pd.DatetimeIndex(["2020-01-01 23:00", "2020-01-02 23:00"], tz="UTC")
    assert rows.index.equals(expected)


@pytest.mark.parametrize(
    ("date_format", "first", "second"),
    [
        ("unix_s", "1577923200", "1577923200.5"),
        ("unix_ms", "1577923200000", "1577923200500"),
        ("unix_us", "1577923200000000", "1577923200500000"),
        ("unix_ns", "1577923200000000000", "1577923200500000000"),
    ],
)
def test_unix_times_are_read_in_utc(write_csv, date_format, first, second):
    text = f"date,close\n{first},1\n{second},2\n"

    rows = load_rows(write_csv(text, date_format=date_format), schema=SCHEMA)

    expected = pd.DatetimeIndex(["2020-01-02 00:00", "2020-01-02 00:00:00.5"], tz="UTC")
    assert rows.index.equals(expected)


@pytest.mark.parametrize("bad", ["noon", "1e30"])
def test_a_value_that_is_no_unix_time_is_reported(write_csv, bad):
    message = get_error_message(
        write_csv(f"date,close\n1577923200,1\n{bad},2\n", date_format="unix_s")
    )

    assert "column 'date' must contain dates in the format unix_s" in message
    assert f"got '{bad}' at line 3" in message


def test_parquet_and_json_lines_have_a_date_format(tmp_path):
    numbers = pd.DataFrame({"date": [1577923200000, 1577923200001], "close": 1.5})
    numbers.to_parquet(tmp_path / "bars.parquet")
    texts = pd.DataFrame({"date": ["01/02/2020", "02/02/2020"], "close": 1.5})
    texts.to_json(tmp_path / "bars.jsonl", orient="records", lines=True)

    milliseconds = load_rows(
        ParquetSource(uri=str(tmp_path / "bars.parquet"), date_format="unix_ms"), schema=SCHEMA
    )
    days = load_rows(
        JsonLinesSource(uri=str(tmp_path / "bars.jsonl"), index="date", date_format="%d/%m/%Y"),
        schema=SCHEMA,
    )

    assert milliseconds.index[1] == pd.Timestamp("2020-01-02 00:00:00.001", tz="UTC")
    assert days.index[1] == pd.Timestamp("2020-02-02")


def test_wide_tables_are_converted_and_validated(write_csv):
    names = [f"c{number}" for number in range(150)]
    schema = Schema(columns=tuple(Column(name=name) for name in names), index_name="date")
    lines = (",".join(["date", *names]), *(f"{day}{',7' * 150}" for day in (1, 2)))

    rows = load_rows(write_csv("\n".join(lines)), schema=schema)  # a warning of pandas is an error

    assert (rows.dtypes == "float64").all()
    assert rows.assign(another=1).shape == (2, 151)


@pytest.mark.parametrize(("kind", "labels"), [("int", [3, 5]), ("float", [0.5, 2.0])])
def test_numbers_label_the_rows_of_a_csv_file(write_csv, kind, labels):
    schema = Schema(columns=(Column(name="close"),), index_name="date", index_kind=kind)
    text = f"date,close\n{labels[0]},1\n{labels[1]},2\n"

    rows = load_rows(write_csv(text), schema=schema)

    assert rows.index.tolist() == labels
    assert rows.index.dtype == np.dtype({"int": "int64", "float": "float64"}[kind])
    with pytest.raises(SourceError, match=r"column 'date' must be numeric, got 'x' at line 3"):
        load_rows(write_csv("date,close\n1,1\nx,2\n"), schema=schema)


def test_parquet_times_with_a_time_zone_are_converted_to_utc(tmp_path):
    times = pd.date_range("2024-03-30", periods=3, tz="Europe/Berlin")
    pd.DataFrame({"date": times, "close": 1.5}).to_parquet(tmp_path / "bars.parquet")

    rows = load_rows(ParquetSource(uri=str(tmp_path / "bars.parquet")), schema=SCHEMA)

    assert str(rows.index.tz) == "UTC"
    assert rows.index[2] == pd.Timestamp("2024-03-31 22:00", tz="UTC")


def test_utc_offsets_of_only_some_dates_are_rejected(write_csv):
    text = "date,close\n2020-01-02T00:00:00+01:00,1\n2020-01-03,2\n"

    message = get_error_message(write_csv(text))

    assert "'2020-01-02T00:00:00+01:00' has a UTC offset, and '2020-01-03' has none" in message
    assert "Write all dates with a UTC offset or all without one" in message


@pytest.mark.parametrize("settings", [{"index": "Date"}, {"rename": {"Close": "close"}}])
def test_unknown_column_in_settings_is_reported_with_the_nearest_name(write_csv, settings):
    message = get_error_message(write_csv(TEXT, **settings))

    assert "has no column" in message
    assert "(nearest: '" in message


def test_ambiguous_day_and_month_need_a_date_format(write_csv):
    text = "date,close\n01/02/2020,1\n02/02/2020,2\n"

    assert "ISO 8601 (2024-12-31), got '01/02/2020' at line 2" in get_error_message(write_csv(text))
    rows = load_rows(write_csv(text, date_format="%m/%d/%Y"), schema=SCHEMA)
    assert rows.index[0] == pd.Timestamp(2020, 1, 2)
