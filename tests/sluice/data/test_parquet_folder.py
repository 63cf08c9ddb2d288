"""ROWS-3: rows of a folder of Parquet files."""

import fsspec
import numpy as np
import pandas as pd
import pytest

from sluice.base.errors import SourceError
from sluice.data.schema import Column, Schema
from sluice.data.sources import ParquetSource, load_rows

SCHEMA = Schema(columns=(Column(name="close"),), index_name="date", index_kind="datetime")


def rows_of(count: int = 600) -> pd.DataFrame:
    dates = pd.date_range("2020-01-01", periods=count, name="date")
    close = np.random.default_rng(0).normal(size=count)
    return pd.DataFrame({"close": close, "year": dates.year}, index=dates)


def partitioned(folder, rows: pd.DataFrame) -> ParquetSource:
    rows.reset_index().to_parquet(folder, partition_cols=["year"], index=False)
    return ParquetSource(uri=str(folder))


def test_a_partitioned_data_set_gives_its_rows_and_the_columns_of_its_folders(tmp_path):
    rows = rows_of()
    source = partitioned(tmp_path / "bars", rows)

    found = load_rows(source, schema=SCHEMA)

    expected = rows.astype({"year": "int64"})
    pd.testing.assert_frame_equal(found, expected, check_freq=False)


def test_a_stored_index_is_kept_and_files_are_read_in_the_order_of_their_paths(tmp_path):
    rows = rows_of().drop(columns="year")
    for number, part in enumerate(np.array_split(np.arange(len(rows)), 12)):
        rows.iloc[part].to_parquet(tmp_path / f"part-{number:02d}.parquet")
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "_metadata.parquet").write_text("not a table")

    found = load_rows(ParquetSource(uri=f"{tmp_path}/"), schema=SCHEMA)

    pd.testing.assert_frame_equal(found, rows, check_freq=False)


def test_a_folder_on_any_file_system_is_read():
    rows = rows_of().drop(columns="year")
    with fsspec.open("memory://bars/region=north/0.parquet", "wb") as file:
        rows.to_parquet(file)

    found = load_rows(ParquetSource(uri="memory://bars"), schema=SCHEMA)

    assert found["region"].unique().tolist() == ["north"]
    assert found["close"].equals(rows["close"])


def refusal(source: ParquetSource) -> str:
    with pytest.raises(SourceError) as caught:
        load_rows(source, schema=SCHEMA)
    return str(caught.value)


def test_a_folder_without_parquet_files_is_refused(tmp_path):
    (tmp_path / "rows.csv").write_text("date,close\n")

    assert "must contain Parquet files, but has 1 other file" in refusal(
        ParquetSource(uri=str(tmp_path))
    )


def test_a_damaged_file_and_other_columns_are_named(tmp_path):
    source = partitioned(tmp_path / "bars", rows_of())
    (file,) = (tmp_path / "bars" / "year=2021").iterdir()
    pd.read_parquet(file).rename(columns={"close": "price"}).to_parquet(file)
    other_columns = refusal(source)
    file.write_bytes(file.read_bytes()[:100])

    assert "'close' is float64 in year=2020/" in other_columns
    assert f"missing in year=2021/{file.name}" in other_columns
    assert f"year=2021/{file.name} of {source.uri} cannot be read as Parquet" in refusal(source)


def test_all_files_together_must_be_below_the_limit(tmp_path):
    rows = pd.DataFrame({"close": np.random.default_rng(0).normal(size=90_000)})
    rows.index = pd.date_range("2020-01-01", periods=len(rows), freq="min", name="date")
    for number in range(3):
        rows.to_parquet(tmp_path / f"{number}.parquet")

    limited = ParquetSource(uri=str(tmp_path), max_bytes=3 * 1024**2)

    assert "max_bytes = 3,145,728" in refusal(limited)
    assert len(load_rows(ParquetSource(uri=str(tmp_path)), schema=SCHEMA)) == 270_000
