"""DATA-2: raw rows from files, and the errors for unreadable files."""

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
from sluice.data.sources import AssetSource, CsvSource, PackagedBars, ParquetSource, load_rows

SCHEMA = Schema(
    columns=(Column(name="close"), Column(name="volume")),
    index_name="date",
    index_kind="datetime",
)
TEXT = "date,close,volume\n2020-01-02,1.5,10\n2020-01-03,2.5,20\n2020-01-06,3.5,30\n"


@pytest.fixture
def csv(tmp_path):
    """Write a CSV file and return its source."""
    numbers = itertools.count()

    def write(text: str | bytes, **settings: object) -> CsvSource:
        path = tmp_path / f"bars{next(numbers)}.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return CsvSource(uri=str(path), **settings)

    return write


def refusal(source) -> str:
    with pytest.raises(SourceError) as caught:
        load_rows(source, schema=SCHEMA)
    return str(caught.value)


def test_the_packaged_bars_are_the_real_ones():
    rows = load_rows(PackagedBars(), schema=SCHEMA)

    assert rows.shape == (5031, 5)
    assert list(rows.columns) == ["open", "high", "low", "close", "volume"]
    assert rows.index.name == "date"
    assert rows.index[0] == pd.Timestamp("1999-01-04")
    assert rows.loc["1999-01-04", "close"] == pytest.approx(1228.099976)
    assert rows["volume"].dtype == np.float64


def test_the_other_packaged_index_loads():
    assert len(load_rows(PackagedBars(name="nasdaq"), schema=SCHEMA)) == 5031


def test_csv_reads_numbers_and_dates(csv):
    rows = load_rows(csv(TEXT), schema=SCHEMA)

    assert rows.index.equals(pd.DatetimeIndex(["2020-01-02", "2020-01-03", "2020-01-06"]))
    assert rows.index.name == "date"
    assert rows["close"].tolist() == [1.5, 2.5, 3.5]
    assert rows["volume"].dtype == np.float64


def test_csv_names_and_formats_are_settings(csv):
    text = "Day;Last;Vol\n02/01/2020;1.5;10\n03/02/2020;2.5;20\n"
    source = csv(
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


def test_rows_are_returned_unchanged(csv):
    rows = load_rows(csv("date,close\n2020-01-03,1\n2020-01-02,\n2020-01-02,3\n"), schema=SCHEMA)

    assert rows.index.day.tolist() == [3, 2, 2]
    assert rows["close"].isna().tolist() == [False, True, False]


@pytest.mark.parametrize("stored", ["index", "column"])
def test_parquet_takes_a_stored_index_or_a_column(tmp_path, csv, stored):
    expected = load_rows(csv(TEXT), schema=SCHEMA)
    path = tmp_path / "bars.parquet"
    (expected if stored == "index" else expected.reset_index()).to_parquet(path)

    rows = load_rows(ParquetSource(uri=str(path)), schema=SCHEMA)

    pd.testing.assert_frame_equal(rows, expected)


def test_any_fsspec_path_is_read():
    with fsspec.open("memory://folder/bars.csv", "w") as file:
        file.write(TEXT)

    assert len(load_rows(CsvSource(uri="memory://folder/bars.csv"), schema=SCHEMA)) == 3
    assert "Did you mean 'bars.csv'?" in refusal(CsvSource(uri="memory://folder/bar.csv"))


def test_a_missing_file_offers_the_nearest_name(csv):
    source = csv(TEXT)
    wrong = source.model_copy(update={"uri": source.uri.replace("bars0", "bras0")})

    message = refusal(wrong)

    assert f"There is no file {wrong.uri}." in message
    assert "Did you mean 'bars0.csv'?" in message


def test_a_missing_folder_reports_it(tmp_path):
    assert "cannot be listed" in refusal(CsvSource(uri=str(tmp_path / "no" / "bars.csv")))


def test_a_folder_and_an_unknown_scheme_are_rejected(tmp_path):
    assert "cannot be read" in refusal(CsvSource(uri=str(tmp_path)))
    assert "cannot be opened" in refusal(CsvSource(uri="nosuch://bars.csv"))


def test_a_bucket_without_its_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)

    said = refusal(CsvSource(uri="s3://bucket/bars.csv"))

    assert said.endswith("pip install '.[s3]'")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_rejected(csv):
    source = csv(TEXT)
    os.chmod(source.uri, 0)

    assert "permission to read it" in refusal(source)


@pytest.mark.parametrize("text", ["", "\n\n", "date,close,volume\n"])
def test_a_file_without_rows_is_rejected(csv, text):
    assert "at least one row" in refusal(csv(text))


def test_an_asset_without_rows_is_rejected():
    with provide_asset(("bars",), pd.DataFrame({"close": []})):
        message = refusal(AssetSource(key=("bars",)))

    assert "The asset bars must return at least one row" in message
    assert "'uri'" not in message


@pytest.mark.parametrize("text", [TEXT + "2020-01-07,1,2,3,4\n", b"PAR1\xff\xfe\x00\x81,\n\x9d\n"])
def test_non_csv_file_is_rejected(csv, text):
    assert "cannot be parsed as CSV" in refusal(csv(text))


def test_non_parquet_file_is_rejected(tmp_path):
    path = tmp_path / "bars.parquet"
    path.write_text(TEXT)

    assert "cannot be read as Parquet" in refusal(ParquetSource(uri=str(path)))


def test_text_in_a_price_is_named_with_line_and_value(csv):
    message = refusal(csv("date,close\n2020-01-02,1\n\n2020-01-03,two\n2020-01-06,x\n"))

    assert "column 'close' must be numeric, got 'two' at line 4 (2 such values of 3)" in message


def test_lines_are_counted_past_line_breaks_in_quoted_values(csv):
    text = 'date,note,close\n\n2020-01-02,"two\n\nlines",1\n   \n2020-01-03,"x\ny",two\n'

    assert "got 'two' at line 7 " in refusal(csv(text))


def test_a_row_is_counted_if_its_file_has_a_value_that_the_csv_module_refuses(csv):
    text = f"date,note,close\n2020-01-02,{'x' * 200_000},two\n"

    assert "got 'two' at row 0, counted from 0 " in refusal(csv(text))


def test_a_parse_error_ends_with_one_full_stop(csv):
    assert "saw 5. " in refusal(csv(TEXT + "2020-01-07,1,2,3,4\n"))


def test_a_thousands_separator_is_not_a_number(csv):
    assert "got '1,228.5' at line 2" in refusal(csv('date,close\n2020-01-02,"1,228.5"\n'))


def test_text_in_parquet_is_named_with_its_row(tmp_path):
    path = tmp_path / "bars.parquet"
    pd.DataFrame({"date": ["2020-01-02", "2020-01-03"], "close": ["1", "?"]}).to_parquet(path)

    assert "got '?' at row 1, counted from 0" in refusal(ParquetSource(uri=str(path)))


@pytest.mark.parametrize("bad", ["31/12/2020", "2020-13-01", "soon", ""])
def test_a_date_that_cannot_be_read_is_named(csv, bad):
    message = refusal(csv(f"date,close\n2020-01-02,1\n{bad},2\n"))

    assert "column 'date' must contain dates" in message
    assert "at line 3" in message


def test_dates_of_two_time_zones_are_rejected(csv):
    text = "date,close\n2020-01-02T00:00:00+01:00,1\n2020-01-03T00:00:00+02:00,2\n"

    assert "one time zone" in refusal(csv(text))


@pytest.mark.parametrize("settings", [{"index": "Date"}, {"rename": {"Close": "close"}}])
def test_a_name_that_the_file_does_not_have_is_rejected(csv, settings):
    message = refusal(csv(TEXT, **settings))

    assert "has no column" in message
    assert "(nearest: '" in message


def test_dates_whose_day_and_month_cannot_be_told_apart_are_rejected(csv):
    text = "date,close\n01/02/2020,1\n02/02/2020,2\n"

    assert "ISO 8601 (2024-12-31), got '01/02/2020' at line 2" in refusal(csv(text))
    rows = load_rows(csv(text, date_format="%m/%d/%Y"), schema=SCHEMA)
    assert rows.index[0] == pd.Timestamp(2020, 1, 2)
