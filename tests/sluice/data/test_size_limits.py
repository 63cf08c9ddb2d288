"""A small file that expands to gigabytes is rejected before its rows are loaded."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.base.errors import SourceError
from sluice.data.schema import Column, Schema
from sluice.data.source_settings import CsvSource, ParquetSource
from sluice.data.sources import load_rows

SCHEMA = Schema(columns=(Column(name="close"),), index_name="date", index_kind="int")
LIMIT = 8 * 1024**2


def refusal(source: CsvSource | ParquetSource) -> str:
    before = pa.total_allocated_bytes()
    with pytest.raises(SourceError) as caught:
        load_rows(source, schema=SCHEMA)
    assert pa.total_allocated_bytes() - before < LIMIT
    assert "raise 'max_bytes'" in caught.value.fix
    return caught.value.what


def numbers() -> pa.Table:
    return pa.table({"date": np.zeros(2_000_000, dtype="int64"), "close": np.zeros(2_000_000)})


NAMES = "".join(f",c{number}" for number in range(5_000))


def repeated(length: int, rows: int) -> pa.Table:
    places = pa.array(np.zeros(rows, dtype="int32"))
    texts = pa.DictionaryArray.from_arrays(places, pa.array(["y" * length]))
    return pa.table({"date": np.zeros(rows, dtype="int64"), "note": texts})


BOMBS = {
    "constant numbers": (numbers(), {}),
    "one text in every row": (repeated(100_000, 3_000), {"store_schema": False}),
    "one text in every row, as categories": (repeated(100_000, 3_000), {}),
    "texts that share their beginning": (
        pa.table({"date": np.arange(300), "note": ["y" * 100_000] * 300}),
        {"use_dictionary": False, "column_encoding": {"note": "DELTA_BYTE_ARRAY"}},
    ),
    "compressed texts": (
        pa.table({"date": np.arange(300), "note": ["y" * 100_000] * 300}),
        {"use_dictionary": False},
    ),
    "decimals of a fixed width": (
        pa.table({"date": [pa.scalar(1, pa.decimal128(30)).as_py()] * 200_000}),
        {},
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_parquet_bomb_is_rejected_with_size_limit_and_setting(tmp_path, name):
    table, options = BOMBS[name]
    path = tmp_path / "bomb.parquet"
    pq.write_table(table, path, compression="zstd", **options)
    assert path.stat().st_size < LIMIT / 16

    said = refusal(ParquetSource(uri=str(path), max_bytes=LIMIT))

    assert "at most max_bytes = 8,388,608 bytes" in said
    assert "got at least" in said


@pytest.mark.parametrize(
    ("header", "line"), [("date,close" + NAMES, "1\n"), ("date,close", ",\n" * 30)]
)
def test_a_csv_of_short_lines_is_rejected_before_its_table_is_built(tmp_path, header, line):
    path = tmp_path / "bomb.csv"
    path.write_text(f"{header}\n{line * 20_000}")

    said = refusal(CsvSource(uri=str(path), max_bytes=LIMIT))

    assert "got at least" in said


def test_a_header_of_nothing_but_names_is_rejected(tmp_path):
    path = tmp_path / "bomb.csv"
    path.write_text("," * 100_000 + "\n1\n")

    assert "got at least" in refusal(CsvSource(uri=str(path), max_bytes=LIMIT))


def test_a_larger_file_is_rejected_while_it_is_read(tmp_path):
    path = tmp_path / "rows.csv"
    with path.open("wb") as file:
        file.truncate(10**12)  # sparse: it weighs nothing

    assert "got a larger file" in refusal(CsvSource(uri=str(path), max_bytes=LIMIT))


def test_a_file_within_the_limit_reads_as_it_is(tmp_path: Path):
    rows = pd.DataFrame(
        {"close": np.arange(1e4), "note": ["a text"] * 10_000, "tags": [["x"], []] * 5_000},
        index=pd.RangeIndex(10_000, name="date"),
    )
    rows.to_parquet(tmp_path / "rows.parquet")
    rows[["close", "note"]].to_csv(tmp_path / "rows.csv")

    found = load_rows(ParquetSource(uri=str(tmp_path / "rows.parquet")), schema=SCHEMA)
    assert found["note"].tolist() == rows["note"].tolist()
    text = CsvSource(uri=str(tmp_path / "rows.csv"), max_bytes=LIMIT)
    assert load_rows(text, schema=SCHEMA)["close"].tolist() == rows["close"].tolist()
