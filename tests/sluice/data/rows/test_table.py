"""Row source of windows of a table file, which is not loaded into memory."""

import os
import pickle
import re
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from sluice.base.errors import ContractError, SourceError, StorageError
from sluice.data.rows import SubsetRows, TableRows

COLUMNS = ("a", "b", "flag")


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "a": rng.normal(size=5_000),
            "name": [f"row {n}" for n in range(5_000)],
            "b": rng.integers(0, 100, 5_000),
            "flag": rng.random(5_000) < 0.5,
        }
    )


@pytest.fixture
def parquet(frame, tmp_path):
    path = tmp_path / "bars.parquet"
    frame.to_parquet(path, row_group_size=700)
    return path


def to_matrix(frame):
    return torch.from_numpy(frame.loc[:, list(COLUMNS)].to_numpy(np.float32))


@pytest.mark.parametrize("seq_len", [1, 7])
def test_windows_equal_those_of_the_table_in_memory(
    parquet, frame, tmp_path, assert_source, seq_len
):
    source = TableRows(parquet, COLUMNS, cache=tmp_path / "cache", seq_len=seq_len)
    windows = to_matrix(frame).unfold(0, seq_len, 1).transpose(1, 2)

    assert len(source) == 5_000 - seq_len + 1
    assert_source(source, lambda rows: windows[rows])


def test_windows_end_at_the_given_rows(parquet, frame, tmp_path, assert_source):
    ends = np.array([9, 4_999, 9, 3])
    source = TableRows(parquet, COLUMNS, cache=tmp_path, seq_len=4, ends=ends)
    x = to_matrix(frame)

    assert_source(
        source,
        lambda rows: (
            torch.stack([x[end - 3 : end + 1] for end in ends[rows]])
            if len(rows)
            else torch.empty(0, 4, 3)
        ),
    )


def test_rows_without_seq_len_have_no_time_dimension(parquet, frame, tmp_path, assert_source):
    source = TableRows(parquet, ["b"], cache=tmp_path, seq_len=None)

    assert_source(source, lambda rows: to_matrix(frame)[rows, 1:2])


def test_arrow_and_npy_files_are_read(frame, tmp_path, assert_source):
    x = to_matrix(frame)
    table = pa.Table.from_pandas(frame)
    path = str(tmp_path / "bars.arrow")
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=900)
    np.save(tmp_path / "bars.npy", x.numpy())

    arrow = TableRows(tmp_path / "bars.arrow", COLUMNS, cache=tmp_path / "cache")
    plain = TableRows(tmp_path / "bars.npy", cache=tmp_path / "none")
    for source in (arrow, plain):
        assert_source(source, lambda rows: x[rows][:, None])
    assert not (tmp_path / "none").exists()


def test_batch_is_a_copy(parquet, tmp_path):
    source = TableRows(parquet, COLUMNS, cache=tmp_path, seq_len=3)
    rows = torch.tensor([5, 6])
    before = source[rows].clone()

    source[rows].zero_()

    assert torch.equal(source[rows], before)


def test_table_is_converted_once_and_again_after_a_change(parquet, frame, tmp_path):
    cache = tmp_path / "cache"
    TableRows(parquet, ["a"], cache=cache)
    (first,) = cache.glob("*.npy")
    modified_ns = first.stat().st_mtime_ns

    TableRows(parquet, ["a"], cache=cache, seq_len=5)
    assert first.stat().st_mtime_ns == modified_ns
    frame.assign(a=0.0).to_parquet(parquet)
    os.utime(parquet, ns=(1, 1))
    source = TableRows(parquet, ["a"], cache=cache)

    assert len(list(cache.glob("*.npy"))) == 2
    assert float(source[torch.arange(5_000)].abs().sum()) == 0


def test_temporary_file_of_a_killed_conversion_is_removed(parquet, tmp_path):
    cache = tmp_path / "cache"
    TableRows(parquet, ["a"], cache=cache)
    (matrix_file,) = cache.glob("*.npy")
    # After SIGKILL, the file with its temporary name remains.
    matrix_file.rename(cache / f".{matrix_file.name}.{'0' * 32}")

    TableRows(parquet, ["a"], cache=cache)

    assert [path.name for path in cache.iterdir() if path.suffix != ".lock"] == [matrix_file.name]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["a", "fleg"], r"has no column 'fleg'. Did you mean 'flag'\?.*a, name, b, flag"),
        (["name"], r"column 'name' of .*bars.parquet must be numeric, got .*string"),
        (None, r"column 'name' of .* must be numeric"),
    ],
)
def test_missing_or_text_column_is_rejected(parquet, tmp_path, columns, message):
    with pytest.raises(ContractError, match=message):
        TableRows(parquet, columns, cache=tmp_path / "cache")

    assert list((tmp_path / "cache").glob("*.npy")) == []


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 1e300])
def test_non_finite_value_is_reported_unless_allowed(tmp_path, value):
    column = pa.array([0.0] * 70_000 + [value, 1.0], pa.float64())
    pq.write_table(pa.table({"a": column}), tmp_path / "t.parquet")

    with pytest.raises(
        ContractError, match=rf"'a' .* finite.*, got {re.escape(str(value))} at row"
    ):
        TableRows(tmp_path / "t.parquet", cache=tmp_path)
    source = TableRows(tmp_path / "t.parquet", cache=tmp_path, allow_nan=True)

    assert source[torch.tensor([70_000])].isfinite().sum() == 0


def test_decimal_columns_are_converted_to_float(tmp_path):
    pq.write_table(pa.table({"a": [Decimal("1.5"), Decimal("2.25")]}), tmp_path / "t.parquet")

    source = TableRows(tmp_path / "t.parquet", cache=tmp_path, seq_len=None)

    assert source[torch.tensor([1, 0])].tolist() == [[2.25], [1.5]]


@pytest.mark.parametrize("content", [None, b"", b"PAR1 and no more"])
def test_missing_or_damaged_file_is_rejected(tmp_path, content):
    path = tmp_path / "t.parquet"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(SourceError, match=r"There is no table|cannot be read as a table"):
        TableRows(path, cache=tmp_path / "cache")


def test_table_without_rows_or_complete_windows_is_rejected(tmp_path):
    for name, rows in (("none", 0), ("few", 3)):
        pq.write_table(pa.table({"a": [1.0] * rows}), tmp_path / f"{name}.parquet")

    with pytest.raises(SourceError, match="at least one row"):
        TableRows(tmp_path / "none.parquet", cache=tmp_path)
    with pytest.raises(ContractError, match=r"The 3 rows of .* contain no window of 4 rows"):
        TableRows(tmp_path / "few.parquet", cache=tmp_path, seq_len=4)
    with pytest.raises(ContractError, match=r"end at a row from 1 to 2, got 0\."):
        TableRows(tmp_path / "few.parquet", cache=tmp_path, seq_len=2, ends=np.array([1, 0]))


@pytest.mark.parametrize("seq_len", [0, -3])
def test_seq_len_below_1_is_rejected(parquet, tmp_path, seq_len):
    with pytest.raises(ContractError, match=f"'seq_len' must be at least 1, got {seq_len}"):
        TableRows(parquet, cache=tmp_path, seq_len=seq_len)


def test_npy_file_of_another_dtype_or_with_column_names_is_rejected(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))

    with pytest.raises(ContractError, match=r"must contain float32 \(rows, columns\), got float64"):
        TableRows(tmp_path / "x.npy", cache=tmp_path)
    with pytest.raises(ContractError, match="has no column names"):
        TableRows(tmp_path / "x.npy", ["a"], cache=tmp_path)


def test_removed_or_replaced_cache_is_reported_after_unpickling(parquet, tmp_path):
    source = TableRows(parquet, ["a"], cache=tmp_path / "cache")
    (file,) = (tmp_path / "cache").glob("*.npy")
    content = pickle.dumps(source)
    np.save(file, np.zeros((2, 1), np.float32))

    with pytest.raises(SourceError, match=r"must contain float32 \(5000, 1\), but contains .*2, 1"):
        pickle.loads(content)[torch.tensor([0])]
    file.unlink()
    with pytest.raises(SourceError, match=rf"There is no file {file}"):
        pickle.loads(content)[torch.tensor([0])]


def test_cache_that_cannot_be_written_is_reported(parquet, tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match="Cannot write"):
        TableRows(parquet, ["a"], cache=tmp_path / "file")


def test_subset_returns_the_rows_of_its_positions(parquet, frame, tmp_path, assert_source):
    x, positions = to_matrix(frame), np.array([4_000, 3, 3, 77])
    source = SubsetRows(TableRows(parquet, COLUMNS, cache=tmp_path, seq_len=None), positions)

    assert len(source) == 4
    assert_source(source, lambda rows: x[positions[rows]])
    with pytest.raises(ContractError, match="from 0 to 4999, got 5000"):
        SubsetRows(x, torch.tensor([5_000]))
    assert SubsetRows(x, positions).lengths_of is None


PROGRAM = """
import sys, resource, torch
import numpy as np, pyarrow.parquet
from sluice.data.rows import TableRows
rows = torch.from_numpy(np.random.default_rng(0).integers(0, 9_999_000, 256))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
source = TableRows(sys.argv[1], cache=sys.argv[2], seq_len=32)
assert len(source) == 10_000_000 - 31
assert source[rows].shape == (256, 32, 8)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
def test_ten_million_rows_are_not_loaded_into_memory(tmp_path):
    """The matrix has 320 MB; conversion and reading may use less than 150 MiB."""
    path = tmp_path / "large.parquet"
    batch = pa.table({f"c{n}": np.arange(100_000) % 251 / 7 for n in range(8)})
    with pq.ParquetWriter(path, batch.schema) as writer:
        for _ in range(10):
            writer.write_table(pa.concat_tables([batch] * 10), row_group_size=1_000_000)

    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        check=True,
    )

    assert int(process.stdout) < 150, "MiB"
