"""Packing of streams to shards, and resuming of an interrupted packing."""

import gzip
import io
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from sluice.base.errors import ContractError, SettingsError, SourceError, StorageError
from sluice.base.file_lock import hold_lock
from sluice.data.packing.pack import pack
from sluice.data.rows import ImageShardRows, ShardRows, TableRows, shard_table
from sluice.data.rows.shards import ShardReader, read_index


def make_records(count):
    rng = random.Random(0)
    return [
        {
            "id": number,
            "text": "word " * rng.randrange(40),
            "score": rng.random() if rng.random() < 0.9 else None,
            "ids": [rng.randrange(9) for _ in range(rng.randrange(5))],
        }
        for number in range(count)
    ]


def write_jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def run_pack(source, folder, **settings):
    return pack(str(source), folder, environ={}, **settings)


def read_files(folder):
    return {
        path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.stat().st_size
    }


def test_json_lines_are_packed_to_shards_of_bounded_rows(tmp_path):
    records = make_records(5_000)
    source = write_jsonl(tmp_path / "reviews.jsonl", records)

    result = run_pack(source, tmp_path / "out", max_shard_rows=700)

    assert (result.rows, result.shards, result.kept_shards) == (5_000, 8, 0)
    assert result.columns == {
        "id": "int64",
        "text": "string",
        "score": "double",
        "ids": "list<item: int64>",
    }
    rows = [4_999, 0, 700, 699, 700]
    assert ShardReader(tmp_path / "out").records(rows) == [records[row] for row in rows]
    frame = shard_table(tmp_path / "out", ["text", "id"])
    assert list(frame.columns) == ["text", "id"]
    assert frame["id"].tolist() == list(range(5_000))


def test_shards_have_a_bounded_size(tmp_path):
    source = write_jsonl(tmp_path / "t.jsonl", [{"t": "x" * 100}] * 1_000)

    run_pack(source, tmp_path / "out", max_shard_bytes=10_050)

    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert [shard["num_rows"] for shard in index["shards"]] == [101] * 9 + [91]


def collate(batch):
    return {
        "length": torch.tensor([len(record["text"]) for record in batch]),
        "id": torch.tensor([record["id"] for record in batch]),
    }


def test_packed_records_are_read_as_rows(tmp_path, assert_source):
    records = make_records(300)
    source = write_jsonl(tmp_path / "t.jsonl", [r | {"score": r["id"] / 2} for r in records])
    run_pack(source, tmp_path / "out", max_shard_rows=70)
    scores = torch.tensor([[record["id"], record["id"] / 2] for record in records])

    assert_source(ShardRows(tmp_path / "out", ["id", "score"]), lambda rows: scores[rows])
    assert_source(
        ShardRows(tmp_path / "out", collate=collate),
        lambda rows: collate([records[row] for row in rows]),
    )
    table = TableRows(tmp_path / "out", ["score"], cache=tmp_path / "cache", seq_len=None)
    assert_source(table, lambda rows: scores[rows, 1:])
    with pytest.raises(ContractError, match=r"no column 'scor'. Did you mean 'score'"):
        ShardRows(tmp_path / "out", ["scor"])
    with pytest.raises(ContractError, match=r"'text' of .* must be numeric, got string"):
        ShardRows(tmp_path / "out")


def test_missing_number_is_reported_with_its_record(tmp_path):
    source = write_jsonl(tmp_path / "t.jsonl", [{"a": 1.0}, {"a": None}])
    run_pack(source, tmp_path / "out")

    with pytest.raises(ContractError, match=r"'a' must have finite numbers, got nan in record 1"):
        ShardRows(tmp_path / "out")[torch.tensor([0, 1])]


def test_tar_of_images_is_packed_and_read_as_rows(tmp_path, assert_source):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 5, 4, 3), dtype=np.uint8)
    with tarfile.open(tmp_path / "images.tar.gz", "w:gz") as archive:
        folder = tarfile.TarInfo("cat")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for number, image in enumerate(pixels):
            content = io.BytesIO()
            Image.fromarray(image).save(content, "png")
            member = tarfile.TarInfo(f"cat/{number}.png")
            member.size = len(content.getvalue())
            archive.addfile(member, io.BytesIO(content.getvalue()))

    result = run_pack(tmp_path / "images.tar.gz", tmp_path / "out", max_shard_rows=16)

    assert (result.rows, result.columns) == (40, {"path": "string", "content": "binary"})
    assert shard_table(tmp_path / "out", ["path"])["path"][39] == "cat/39.png"
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    assert_source(ImageShardRows(tmp_path / "out"), lambda rows: x[rows])
    with pytest.raises(ContractError, match="'path' of type binary"):
        ImageShardRows(tmp_path / "out", column="path")


def test_broken_image_in_a_shard_is_reported_with_its_record(tmp_path):
    with tarfile.open(tmp_path / "images.tar", "w") as archive:
        for name, content in (("a.png", b"broken"), ("b.png", b"")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    run_pack(tmp_path / "images.tar", tmp_path / "out")

    with pytest.raises(SourceError, match=r"record 1 of .*out cannot be decoded"):
        ImageShardRows(tmp_path / "out", size=4)[torch.tensor([1])]


def test_csv_files_are_packed_in_the_order_of_their_names(tmp_path):
    for name, first in (("b", 3), ("a", 0)):
        lines = "".join(f'{first + n},"two\nlines",{n / 4}\n' for n in range(3))
        (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress(f"id,text,x\n{lines}".encode()))

    result = run_pack(tmp_path / "*.csv.gz", tmp_path / "out")

    assert result.columns == {"id": "int64", "text": "string", "x": "double"}
    assert ShardReader(tmp_path / "out").records([3, 2]) == [
        {"id": 3, "text": "two\nlines", "x": 0.0},
        {"id": 2, "text": "two\nlines", "x": 0.5},
    ]


def test_parquet_on_another_file_system_is_packed(tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    frame = pd.DataFrame({"a": np.arange(1_000), "kind": pd.Categorical(["x", "y"] * 500)})
    for name in ("1", "2"):
        with memory.open(f"/pack/{name}.parquet", "wb") as file:
            frame.to_parquet(file, row_group_size=64)

    result = run_pack("memory://pack/*.parquet", tmp_path / "out", max_shard_rows=300)

    assert (result.rows, result.columns["kind"]) == (2_000, "string")
    expected = pd.concat([frame, frame], ignore_index=True).astype({"kind": "str"})
    pd.testing.assert_frame_equal(shard_table(tmp_path / "out"), expected)
    memory.rm("/pack", recursive=True)


def test_environment_variables_in_the_source_are_not_resolved_in_the_index(tmp_path):
    write_jsonl(tmp_path / "t.jsonl", [{"a": 1}])

    pack("${PLACE}/t.jsonl", tmp_path / "out", environ={"PLACE": str(tmp_path)})

    index = (tmp_path / "out" / "index.json").read_text()
    assert "${PLACE}/t.jsonl" in index
    assert str(tmp_path / "t.jsonl") not in index


# -- rejected sources --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jsonl", '{"a": 1}\n\n{"a": 1\n', "line 3 of .*t.jsonl cannot be parsed: .*delimiter"),
        ("t.jsonl", '{"a": 1}\n[1]\n', "line 2 of .* it is not an object but list"),
        ("t.jsonl", '{"a": NaN}\n', "NaN is not a JSON number"),
        (
            "t.jsonl",
            '{"a": 1}\n{"a": "x"}\n',
            "column 'a' of .* must have values of one type: .*'x'",
        ),
        ("t.jsonl", '{"a": 1}\n{"a": [1]}\n', "column 'a' of .* must have values of one type"),
        ("t.jsonl", "", "must have at least one record"),
        ("t.csv", "a,b\n1,2\n3\n", "cannot be parsed as CSV: .*(2 columns|Expected 2)"),
        ("t.csv", "", "cannot be parsed as CSV: Empty CSV"),
        ("t.csv", "a,b\n", "must have at least one record"),
        ("t.tar", "no archive", "t.tar cannot be parsed"),
        ("t.tar.gz", "no archive", "t.tar.gz cannot be read"),
        ("t.parquet", "no table", "t.parquet cannot be parsed"),
        ("t.jsonl.gz", "not compressed", r"cannot be read \(BadGzipFile"),
        ("t.jsonl.zst", "not compressed", r"cannot be (read|decompressed)"),
        ("t.txt", "text", "format of .*t.txt is not known"),
    ],
)
def test_source_that_cannot_be_parsed_is_rejected(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)

    with pytest.raises(SourceError, match=message):
        run_pack(tmp_path / name, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*shard*"))


def test_missing_source_error_suggests_the_nearest_name(tmp_path):
    write_jsonl(tmp_path / "reviews.jsonl", [{"a": 1}])

    with pytest.raises(SourceError, match=r"no file .*review.jsonl. Did you mean 'reviews.jsonl'"):
        run_pack(tmp_path / "review.jsonl", tmp_path / "out")
    with pytest.raises(SourceError, match="There is no file"):
        run_pack(tmp_path, tmp_path / "out")
    with pytest.raises(SourceError, match="There is no file"):
        run_pack(tmp_path / "*.csv", tmp_path / "out")
    with pytest.raises(SourceError, match="cannot be read"):
        run_pack("unknown://x.csv", tmp_path / "out")


@pytest.mark.parametrize(
    ("invalid", "message"),
    [
        ({"a": 1.5}, r"'a' must be int64: got double at line 10003 of .*--column 'a=float64'"),
        ({"a": True}, "column 'a' must be int64: got bool at line 10003"),
        ({"a": "x"}, "column 'a' must be int64: .* at line 10003"),
        ({"a": 2**70}, "column 'a' must be int64: .* at line 10003"),
        ({"a": 1, "b": 2}, "record at line 10003 of .* has the key 'b'"),
    ],
)
def test_late_record_with_another_type_or_key_is_reported(tmp_path, invalid, message):
    source = write_jsonl(tmp_path / "t.jsonl", [*[{"a": 1}] * 10_002, invalid])

    with pytest.raises(SourceError, match=message):
        run_pack(source, tmp_path / "out", max_shard_rows=4_000)

    # Finished shards are kept, and no incomplete file is.
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        ".lock",
        "index.json",
        "shard-00000.arrow",
        "shard-00001.arrow",
    ]


def test_declared_float_column_accepts_late_non_integers(tmp_path):
    source = write_jsonl(tmp_path / "t.jsonl", [*[{"a": 1}] * 10_002, {"a": 1.5}])

    result = run_pack(source, tmp_path / "out", columns={"a": "float64"})

    assert result.columns == {"a": "double"}
    assert ShardReader(tmp_path / "out").records([10_002]) == [{"a": 1.5}]
    with pytest.raises(SettingsError, match="no column 'b'"):
        run_pack(source, tmp_path / "other", columns={"b": "float64"})
    with pytest.raises(
        ContractError, match=r"column 'a' as double, but this .* declares 'a' as int"
    ):
        run_pack(source, tmp_path / "out", columns={"a": "int64"})
    with pytest.raises(ContractError, match="has no column 'b', but this command declares 'b' as"):
        run_pack(source, tmp_path / "out", columns={"b": "float64"})


def test_late_csv_value_of_another_type_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("sluice.data.packing.records._CSV_BLOCK_BYTES", 1_000)
    (tmp_path / "t.csv").write_text("a\n" + "1\n" * 2_000 + "x\n")

    with pytest.raises(SourceError, match=r"conversion error to int64: invalid value 'x'"):
        run_pack(tmp_path / "t.csv", tmp_path / "out")
    assert run_pack(tmp_path / "t.csv", tmp_path / "out", columns={"a": "string"}).rows == 2_001


def test_types_inside_objects_and_lists_are_checked(tmp_path):
    first = {"o": {"x": 1, "y": [1.5]}}
    valid_records = [*[first] * 10_000, {"o": {"x": None, "y": [2]}}, {"o": None}]
    source = write_jsonl(tmp_path / "t.jsonl", valid_records)
    run_pack(source, tmp_path / "out")

    assert ShardReader(tmp_path / "out").records([10_000, 0]) == [
        {"o": {"x": None, "y": [2.0]}},
        first,
    ]
    for invalid in ({"x": 1.5}, {"z": 1}, {"y": ["a"]}):
        write_jsonl(source, [*valid_records, {"o": invalid}])
        with pytest.raises(SourceError, match=r"column 'o' must be struct.* at line 10003"):
            run_pack(source, tmp_path / next(iter(invalid)))


def test_files_with_different_columns_are_rejected(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"b": [1]}), tmp_path / "2.parquet")
    (tmp_path / "1.csv").write_text("a\n1\n")
    (tmp_path / "2.csv").write_text("a,b\n1,2\n")

    for suffix in ("parquet", "csv"):
        with pytest.raises(SourceError, match=f"2.{suffix} must have the columns a of the first"):
            run_pack(tmp_path / f"*.{suffix}", tmp_path / suffix)


def test_link_in_an_archive_is_rejected(tmp_path):
    with tarfile.open(tmp_path / "t.tar", "w") as archive:
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "other.png"
        archive.addfile(link)

    with pytest.raises(SourceError, match=r"'link.png' is a link"):
        run_pack(tmp_path / "t.tar", tmp_path / "out")


def test_truncated_archive_is_rejected(tmp_path):
    with tarfile.open(tmp_path / "t.tar", "w") as archive:
        member = tarfile.TarInfo("a.bin")
        member.size = 100_000
        archive.addfile(member, io.BytesIO(bytes(100_000)))
    content = (tmp_path / "t.tar").read_bytes()
    (tmp_path / "t.tar").write_bytes(content[:50_000])

    with pytest.raises(SourceError, match=r"t.tar cannot be parsed: unexpected end of data"):
        run_pack(tmp_path / "t.tar", tmp_path / "out")


def test_folder_with_other_files_settings_or_source_is_rejected(tmp_path):
    source = write_jsonl(tmp_path / "t.jsonl", [{"a": 1}])
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("x")
    run_pack(source, tmp_path / "out")

    with pytest.raises(ContractError, match=r"must be new, empty .* but contains notes.txt"):
        run_pack(source, tmp_path / "used")
    with pytest.raises(ContractError, match="packed with max_shard_rows = 1048576"):
        run_pack(source, tmp_path / "out", max_shard_rows=5)
    write_jsonl(source, [{"a": 1}, {"a": 2}])
    with pytest.raises(ContractError, match="packed from other files: a name, size or"):
        run_pack(source, tmp_path / "out")
    with pytest.raises(StorageError, match="cannot be used as a folder"):
        run_pack(source, source)


def test_folder_locked_by_another_process_is_rejected(tmp_path):
    source = write_jsonl(tmp_path / "t.jsonl", [{"a": 1}])

    with (
        hold_lock(tmp_path / "out" / ".lock", wait=False),
        pytest.raises(ContractError, match="Another process is packing"),
    ):
        run_pack(source, tmp_path / "out")


# -- interruptions -----------------------------------------------------------------------------


def test_finished_shards_are_verified_and_kept(tmp_path):
    source = write_jsonl(tmp_path / "t.jsonl", make_records(1_000))
    messages = []
    run_pack(source, tmp_path / "out", max_shard_rows=300)
    before = read_files(tmp_path / "out")

    result = run_pack(
        source,
        tmp_path / "out",
        max_shard_rows=300,
        on_progress=lambda state: messages.append(state.message),
    )

    assert (result.kept_shards, result.rows) == (4, 1_000)
    assert read_files(tmp_path / "out") == before
    assert messages == ["verified 4 finished shards with 1,000 records"]


@pytest.mark.parametrize("damage", ["missing", "changed", "short"])
def test_damaged_shard_is_detected_and_packed_again(tmp_path, damage):
    source = write_jsonl(tmp_path / "t.jsonl", make_records(1_000))
    run_pack(source, tmp_path / "out", max_shard_rows=300)
    before = read_files(tmp_path / "out")
    shard = tmp_path / "out" / "shard-00001.arrow"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "missing":
        shard.unlink()
    else:
        shard.write_bytes(content if damage == "changed" else content[:-8])
    if damage != "changed":
        with pytest.raises(SourceError, match=r"The shard .*shard-00001.arrow must have"):
            ShardRows(tmp_path / "out", ["id"])
    messages = []

    result = run_pack(
        source,
        tmp_path / "out",
        max_shard_rows=300,
        on_progress=lambda state: messages.append(state.message),
    )

    assert result.kept_shards == 1
    assert "shard-00001.arrow is missing or damaged: packing again from record 300" in messages
    assert read_files(tmp_path / "out") == before


def test_incomplete_or_invalid_index_is_rejected(tmp_path):
    source = write_jsonl(tmp_path / "t.jsonl", [{"a": 1}])
    run_pack(source, tmp_path / "out")
    index = tmp_path / "out" / "index.json"
    text = index.read_text()

    index.write_text(text.replace('"complete": true', '"complete": false'))
    with pytest.raises(SourceError, match="an index of an unfinished packing"):
        ShardRows(tmp_path / "out")
    index.write_text("{}")
    with pytest.raises(SourceError, match=r"index.json cannot be read as the index"):
        ShardRows(tmp_path / "out")
    index.unlink()
    with pytest.raises(SourceError, match="has no index"):
        ShardRows(tmp_path / "out")


PROGRAM = """
import sys
from pathlib import Path
from sluice.data.packing.pack import pack
pack(sys.argv[1], Path(sys.argv[2]), environ={}, max_shard_rows=397)
"""


def make_source(kind, folder):
    records = [{"id": n, "text": "abc" * (n % 300)} for n in range(12_000)]
    match kind:
        case "jsonl":
            return write_jsonl(folder / "t.jsonl", records)
        case "csv":
            pd.DataFrame(records).to_csv(folder / "t.csv", index=False)
        case "parquet":
            pd.DataFrame(records).to_parquet(folder / "t.parquet", row_group_size=2_000)
        case "tar":
            with tarfile.open(folder / "t.tar", "w") as archive:
                for record in records:
                    member = tarfile.TarInfo(f"{record['id']}.txt")
                    member.size = len(record["text"])
                    archive.addfile(member, io.BytesIO(record["text"].encode()))
    return folder / f"t.{kind}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "tar"])
def test_packing_killed_three_times_has_bitwise_equal_shards(tmp_path, kind):
    source = make_source(kind, tmp_path)
    run_pack(source, tmp_path / "uninterrupted", max_shard_rows=397)
    command = [sys.executable, "-c", PROGRAM, str(source), str(tmp_path / "out")]
    rng = random.Random(kind)

    num_interrupted = 0
    for number in (1, 8, 16):
        process = subprocess.Popen(command)
        shard = tmp_path / "out" / f"shard-{number:05}.arrow"
        while not shard.exists() and process.poll() is None:
            time.sleep(0.001)
        time.sleep(rng.random() / 200)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        index = read_index(tmp_path / "out")
        num_interrupted += index is None or not index.complete
    result = run_pack(source, tmp_path / "out", max_shard_rows=397)

    assert (result.rows, result.shards) == (12_000, 31)
    assert result.kept_shards >= 16
    assert num_interrupted >= 2  # on a busy machine the last process may finish
    assert read_files(tmp_path / "out") == read_files(tmp_path / "uninterrupted")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_size_of_the_source(tmp_path):
    line = json.dumps({"text": "x" * 1_000}) + "\n"

    def measure_peak(count):
        source = tmp_path / f"{count}.jsonl"
        with open(source, "w") as file:
            file.writelines(itertools.repeat(line, count))
        pool = pa.default_memory_pool()
        before = pool.bytes_allocated()
        max_allocated = 0

        def record_allocated(_):
            nonlocal max_allocated
            max_allocated = max(max_allocated, pool.bytes_allocated() - before)

        tracemalloc.start()
        try:
            run_pack(
                source,
                tmp_path / f"out{count}",
                max_shard_bytes=2**22,
                on_progress=record_allocated,
            )
            return tracemalloc.get_traced_memory()[1] + max_allocated
        finally:
            tracemalloc.stop()

    measure_peak(1_000)
    # Both counts exceed the 10,000 records from which types are inferred.
    peak_of_few, peak_of_many = measure_peak(20_000), measure_peak(60_000)

    assert peak_of_many < 1.1 * peak_of_few + 1_000_000


def test_source_may_be_a_relative_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_jsonl(Path("t.jsonl"), [{"a": 1}])

    assert pack("t.jsonl", Path("out"), environ={}).folder == str(tmp_path / "out")
