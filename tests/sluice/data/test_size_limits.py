"""Small files that expand beyond ``max_bytes`` are rejected before their rows are loaded."""

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


def get_error_message(source: CsvSource | ParquetSource) -> str:
    """Return the message of the expected SourceError; at most LIMIT bytes may stay allocated."""
    before = pa.total_allocated_bytes()
    with pytest.raises(SourceError) as caught:
        load_rows(source, schema=SCHEMA)
    assert pa.total_allocated_bytes() - before < LIMIT
    assert "raise 'max_bytes'" in caught.value.fix
    return caught.value.what


def make_constant_columns() -> pa.Table:
    return pa.table({"date": np.zeros(2_000_000, dtype="int64"), "close": np.zeros(2_000_000)})


MANY_COLUMNS = "".join(f",c{number}" for number in range(5_000))


def repeat_text(length: int, rows: int) -> pa.Table:
    """Return rows that share one text of the given length, stored once in a dictionary."""
    indices = pa.array(np.zeros(rows, dtype="int32"))
    texts = pa.DictionaryArray.from_arrays(indices, pa.array(["y" * length]))
    return pa.table({"date": np.zeros(rows, dtype="int64"), "note": texts})


BOMBS = {
    "constant numbers": (make_constant_columns(), {}),
    "one text in every row": (repeat_text(100_000, 3_000), {"store_schema": False}),
    "one text in every row, as categories": (repeat_text(100_000, 3_000), {}),
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
def test_parquet_decompression_bomb_is_rejected_with_size_and_limit(tmp_path, name):
    table, options = BOMBS[name]
    path = tmp_path / "bomb.parquet"
    pq.write_table(table, path, compression="zstd", **options)
    assert path.stat().st_size < LIMIT / 16

    message = get_error_message(ParquetSource(uri=str(path), max_bytes=LIMIT))

    assert "at most max_bytes = 8,388,608 bytes" in message
    assert "got at least" in message


@pytest.mark.parametrize(
    ("header", "line"), [("date,close" + MANY_COLUMNS, "1\n"), ("date,close", ",\n" * 30)]
)
def test_csv_with_many_cells_is_rejected_before_its_table_is_built(tmp_path, header, line):
    path = tmp_path / "bomb.csv"
    path.write_text(f"{header}\n{line * 20_000}")

    message = get_error_message(CsvSource(uri=str(path), max_bytes=LIMIT))

    assert "got at least" in message


def test_csv_with_100_000_columns_is_rejected(tmp_path):
    path = tmp_path / "bomb.csv"
    path.write_text("," * 100_000 + "\n1\n")

    assert "got at least" in get_error_message(CsvSource(uri=str(path), max_bytes=LIMIT))


def test_csv_file_above_the_limit_is_rejected(tmp_path):
    path = tmp_path / "rows.csv"
    with path.open("wb") as file:
        file.truncate(10**12)  # sparse, so it occupies no disk space

    assert "got a larger file" in get_error_message(CsvSource(uri=str(path), max_bytes=LIMIT))


def test_file_within_the_limit_is_read_unchanged(tmp_path: Path):
    rows = pd.DataFrame(
        {"close": np.arange(1e4), "note": ["a text"] * 10_000, "tags": [["x"], []] * 5_000},
        index=pd.RangeIndex(10_000, name="date"),
    )
    rows.to_parquet(tmp_path / "rows.parquet")
    rows[["close", "note"]].to_csv(tmp_path / "rows.csv")

    parquet_rows = load_rows(ParquetSource(uri=str(tmp_path / "rows.parquet")), schema=SCHEMA)
    assert parquet_rows["note"].tolist() == rows["note"].tolist()
    csv_source = CsvSource(uri=str(tmp_path / "rows.csv"), max_bytes=LIMIT)
    assert load_rows(csv_source, schema=SCHEMA)["close"].tolist() == rows["close"].tolist()
