"""Loading of rows from a folder of Parquet files (ROWS-3)."""

import fsspec
import numpy as np
import pandas as pd
import pytest

from sluice.base.errors import SourceError
from sluice.data.schema import Column, Schema
from sluice.data.sources import ParquetSource, load_rows

SCHEMA = Schema(columns=(Column(name="close"),), index_name="date", index_kind="datetime")


def make_rows(count: int = 600) -> pd.DataFrame:
    dates = pd.date_range("2020-01-01", periods=count, name="date")
    close = np.random.default_rng(0).normal(size=count)
    return pd.DataFrame({"close": close, "year": dates.year}, index=dates)


def write_partitioned(folder, rows: pd.DataFrame) -> ParquetSource:
    rows.reset_index().to_parquet(folder, partition_cols=["year"], index=False)
    return ParquetSource(uri=str(folder))


def test_partitioned_dataset_is_read_with_its_partition_columns(tmp_path):
    rows = make_rows()
    source = write_partitioned(tmp_path / "bars", rows)

    loaded = load_rows(source, schema=SCHEMA)

    expected = rows.astype({"year": "int64"})
    pd.testing.assert_frame_equal(loaded, expected, check_freq=False)


def test_stored_index_is_kept_and_files_are_read_in_path_order(tmp_path):
    rows = make_rows().drop(columns="year")
    for number, part in enumerate(np.array_split(np.arange(len(rows)), 12)):
        rows.iloc[part].to_parquet(tmp_path / f"part-{number:02d}.parquet")
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "_metadata.parquet").write_text("not a table")

    loaded = load_rows(ParquetSource(uri=f"{tmp_path}/"), schema=SCHEMA)

    pd.testing.assert_frame_equal(loaded, rows, check_freq=False)


def test_folder_on_an_fsspec_file_system_is_read():
    rows = make_rows().drop(columns="year")
    with fsspec.open("memory://bars/region=north/0.parquet", "wb") as file:
        rows.to_parquet(file)

    loaded = load_rows(ParquetSource(uri="memory://bars"), schema=SCHEMA)

    assert loaded["region"].unique().tolist() == ["north"]
    assert loaded["close"].equals(rows["close"])


def get_error_message(source: ParquetSource) -> str:
    with pytest.raises(SourceError) as caught:
        load_rows(source, schema=SCHEMA)
    return str(caught.value)


def test_folder_without_parquet_files_is_rejected(tmp_path):
    (tmp_path / "rows.csv").write_text("date,close\n")

    assert "must contain Parquet files, but has 1 other file" in get_error_message(
        ParquetSource(uri=str(tmp_path))
    )


def test_error_names_the_damaged_file_or_the_differing_column(tmp_path):
    source = write_partitioned(tmp_path / "bars", make_rows())
    (file,) = (tmp_path / "bars" / "year=2021").iterdir()
    pd.read_parquet(file).rename(columns={"close": "price"}).to_parquet(file)
    other_columns = get_error_message(source)
    file.write_bytes(file.read_bytes()[:100])

    assert "'close' is float64 in year=2020/" in other_columns
    assert f"missing in year=2021/{file.name}" in other_columns
    assert f"year=2021/{file.name} of {source.uri} cannot be read as Parquet" in get_error_message(
        source
    )


def test_size_limit_applies_to_all_files_together(tmp_path):
    rows = pd.DataFrame({"close": np.random.default_rng(0).normal(size=90_000)})
    rows.index = pd.date_range("2020-01-01", periods=len(rows), freq="min", name="date")
    for number in range(3):
        rows.to_parquet(tmp_path / f"{number}.parquet")

    limited = ParquetSource(uri=str(tmp_path), max_bytes=3 * 1024**2)

    assert "max_bytes = 3,145,728" in get_error_message(limited)
    assert len(load_rows(ParquetSource(uri=str(tmp_path)), schema=SCHEMA)) == 270_000
