"""A stream is packed once to shards; a killed packing continues with the same result."""

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


def records(count):
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


def write_jsonl(path, found):
    path.write_text("".join(json.dumps(record) + "\n" for record in found))
    return path


def run(source, folder, **settings):
    return pack(str(source), folder, environ={}, **settings)


def contents(folder):
    return {
        path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.stat().st_size
    }


def test_json_lines_become_shards_of_bounded_size(tmp_path):
    found = records(5_000)
    source = write_jsonl(tmp_path / "reviews.jsonl", found)

    result = run(source, tmp_path / "out", max_shard_rows=700)

    assert (result.rows, result.shards, result.kept_shards) == (5_000, 8, 0)
    assert result.columns == {
        "id": "int64",
        "text": "string",
        "score": "double",
        "ids": "list<item: int64>",
    }
    rows = [4_999, 0, 700, 699, 700]
    assert ShardReader(tmp_path / "out").records(rows) == [found[row] for row in rows]
    frame = shard_table(tmp_path / "out", ["text", "id"])
    assert list(frame.columns) == ["text", "id"]
    assert frame["id"].tolist() == list(range(5_000))


def test_a_shard_is_closed_by_its_size_too(tmp_path):
    source = write_jsonl(tmp_path / "t.jsonl", [{"t": "x" * 100}] * 1_000)

    run(source, tmp_path / "out", max_shard_bytes=10_050)

    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert [shard["num_rows"] for shard in index["shards"]] == [101] * 9 + [91]


def collate(found):
    return {
        "length": torch.tensor([len(record["text"]) for record in found]),
        "id": torch.tensor([record["id"] for record in found]),
    }


def test_records_become_rows(tmp_path, assert_source):
    found = records(300)
    source = write_jsonl(tmp_path / "t.jsonl", [r | {"score": r["id"] / 2} for r in found])
    run(source, tmp_path / "out", max_shard_rows=70)
    scores = torch.tensor([[record["id"], record["id"] / 2] for record in found])

    assert_source(ShardRows(tmp_path / "out", ["id", "score"]), lambda rows: scores[rows])
    assert_source(
        ShardRows(tmp_path / "out", collate=collate),
        lambda rows: collate([found[row] for row in rows]),
    )
    table = TableRows(tmp_path / "out", ["score"], cache=tmp_path / "cache", seq_len=None)
    assert_source(table, lambda rows: scores[rows, 1:])
    with pytest.raises(ContractError, match=r"no column 'scor'. Did you mean 'score'"):
        ShardRows(tmp_path / "out", ["scor"])
    with pytest.raises(ContractError, match=r"'text' of .* must be numeric, got string"):
        ShardRows(tmp_path / "out")


def test_a_missing_number_is_named(tmp_path):
    source = write_jsonl(tmp_path / "t.jsonl", [{"a": 1.0}, {"a": None}])
    run(source, tmp_path / "out")

    with pytest.raises(ContractError, match=r"'a' must have finite numbers, got nan in record 1"):
        ShardRows(tmp_path / "out")[torch.tensor([0, 1])]


def test_a_tar_of_images_becomes_rows(tmp_path, assert_source):
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

    result = run(tmp_path / "images.tar.gz", tmp_path / "out", max_shard_rows=16)

    assert (result.rows, result.columns) == (40, {"path": "string", "content": "binary"})
    assert shard_table(tmp_path / "out", ["path"])["path"][39] == "cat/39.png"
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    assert_source(ImageShardRows(tmp_path / "out"), lambda rows: x[rows])
    with pytest.raises(ContractError, match="'path' of type binary"):
        ImageShardRows(tmp_path / "out", column="path")


def test_a_broken_image_in_shards_is_named(tmp_path):
    with tarfile.open(tmp_path / "images.tar", "w") as archive:
        for name, content in (("a.png", b"broken"), ("b.png", b"")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    run(tmp_path / "images.tar", tmp_path / "out")

    with pytest.raises(SourceError, match=r"record 1 of .*out cannot be decoded"):
        ImageShardRows(tmp_path / "out", size=4)[torch.tensor([1])]


def test_csv_files_are_packed_in_the_order_of_their_names(tmp_path):
    for name, first in (("b", 3), ("a", 0)):
        lines = "".join(f'{first + n},"two\nlines",{n / 4}\n' for n in range(3))
        (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress(f"id,text,x\n{lines}".encode()))

    result = run(tmp_path / "*.csv.gz", tmp_path / "out")

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

    result = run("memory://pack/*.parquet", tmp_path / "out", max_shard_rows=300)

    assert (result.rows, result.columns["kind"]) == (2_000, "string")
    expected = pd.concat([frame, frame], ignore_index=True).astype({"kind": "str"})
    pd.testing.assert_frame_equal(shard_table(tmp_path / "out"), expected)
    memory.rm("/pack", recursive=True)


def test_variables_are_replaced_and_not_stored(tmp_path):
    write_jsonl(tmp_path / "t.jsonl", [{"a": 1}])

    pack("${PLACE}/t.jsonl", tmp_path / "out", environ={"PLACE": str(tmp_path)})

    index = (tmp_path / "out" / "index.json").read_text()
    assert "${PLACE}/t.jsonl" in index
    assert str(tmp_path / "t.jsonl") not in index


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "match"),
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
def test_a_source_that_cannot_be_parsed_is_refused(tmp_path, name, content, match):
    (tmp_path / name).write_text(content)

    with pytest.raises(SourceError, match=match):
        run(tmp_path / name, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*shard*"))


def test_a_missing_source_is_refused_with_the_nearest_name(tmp_path):
    write_jsonl(tmp_path / "reviews.jsonl", [{"a": 1}])

    with pytest.raises(SourceError, match=r"no file .*review.jsonl. Did you mean 'reviews.jsonl'"):
        run(tmp_path / "review.jsonl", tmp_path / "out")
    with pytest.raises(SourceError, match="There is no file"):
        run(tmp_path, tmp_path / "out")
    with pytest.raises(SourceError, match="There is no file"):
        run(tmp_path / "*.csv", tmp_path / "out")
    with pytest.raises(SourceError, match="cannot be read"):
        run("unknown://x.csv", tmp_path / "out")


@pytest.mark.parametrize(
    ("odd", "match"),
    [
        ({"a": 1.5}, r"'a' must be int64: got double at line 10003 of .*--column 'a=float64'"),
        ({"a": True}, "column 'a' must be int64: got bool at line 10003"),
        ({"a": "x"}, "column 'a' must be int64: .* at line 10003"),
        ({"a": 2**70}, "column 'a' must be int64: .* at line 10003"),
        ({"a": 1, "b": 2}, "record at line 10003 of .* has the key 'b'"),
    ],
)
def test_a_late_record_of_another_form_is_named(tmp_path, odd, match):
    source = write_jsonl(tmp_path / "t.jsonl", [*[{"a": 1}] * 10_002, odd])

    with pytest.raises(SourceError, match=match):
        run(source, tmp_path / "out", max_shard_rows=4_000)

    # What was finished is kept; nothing incomplete is.
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        ".lock",
        "index.json",
        "shard-00000.arrow",
        "shard-00001.arrow",
    ]


def test_a_declared_type_accepts_late_fractions(tmp_path):
    source = write_jsonl(tmp_path / "t.jsonl", [*[{"a": 1}] * 10_002, {"a": 1.5}])

    result = run(source, tmp_path / "out", columns={"a": "float64"})

    assert result.columns == {"a": "double"}
    assert ShardReader(tmp_path / "out").records([10_002]) == [{"a": 1.5}]
    with pytest.raises(SettingsError, match="no column 'b'"):
        run(source, tmp_path / "other", columns={"b": "float64"})
    with pytest.raises(
        ContractError, match=r"column 'a' as double, but this .* declares 'a' as int"
    ):
        run(source, tmp_path / "out", columns={"a": "int64"})
    with pytest.raises(ContractError, match="has no column 'b', but this command declares 'b' as"):
        run(source, tmp_path / "out", columns={"b": "float64"})


def test_a_late_csv_value_of_another_type_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("sluice.data.packing.records._CSV_BLOCK_BYTES", 1_000)
    (tmp_path / "t.csv").write_text("a\n" + "1\n" * 2_000 + "x\n")

    with pytest.raises(SourceError, match=r"conversion error to int64: invalid value 'x'"):
        run(tmp_path / "t.csv", tmp_path / "out")
    assert run(tmp_path / "t.csv", tmp_path / "out", columns={"a": "string"}).rows == 2_001


def test_objects_and_lists_are_checked_inside(tmp_path):
    first = {"o": {"x": 1, "y": [1.5]}}
    whole = [*[first] * 10_000, {"o": {"x": None, "y": [2]}}, {"o": None}]
    source = write_jsonl(tmp_path / "t.jsonl", whole)
    run(source, tmp_path / "out")

    assert ShardReader(tmp_path / "out").records([10_000, 0]) == [
        {"o": {"x": None, "y": [2.0]}},
        first,
    ]
    for odd in ({"x": 1.5}, {"z": 1}, {"y": ["a"]}):
        write_jsonl(source, [*whole, {"o": odd}])
        with pytest.raises(SourceError, match=r"column 'o' must be struct.* at line 10003"):
            run(source, tmp_path / next(iter(odd)))


def test_files_with_other_columns_are_refused(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"b": [1]}), tmp_path / "2.parquet")
    (tmp_path / "1.csv").write_text("a\n1\n")
    (tmp_path / "2.csv").write_text("a,b\n1,2\n")

    for suffix in ("parquet", "csv"):
        with pytest.raises(SourceError, match=f"2.{suffix} must have the columns a of the first"):
            run(tmp_path / f"*.{suffix}", tmp_path / suffix)


def test_a_link_in_an_archive_is_refused(tmp_path):
    with tarfile.open(tmp_path / "t.tar", "w") as archive:
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "other.png"
        archive.addfile(link)

    with pytest.raises(SourceError, match=r"'link.png' is a link"):
        run(tmp_path / "t.tar", tmp_path / "out")


def test_a_truncated_archive_is_refused(tmp_path):
    with tarfile.open(tmp_path / "t.tar", "w") as archive:
        member = tarfile.TarInfo("a.bin")
        member.size = 100_000
        archive.addfile(member, io.BytesIO(bytes(100_000)))
    content = (tmp_path / "t.tar").read_bytes()
    (tmp_path / "t.tar").write_bytes(content[:50_000])

    with pytest.raises(SourceError, match=r"t.tar cannot be parsed: unexpected end of data"):
        run(tmp_path / "t.tar", tmp_path / "out")


def test_a_folder_with_other_files_or_another_source_is_refused(tmp_path):
    source = write_jsonl(tmp_path / "t.jsonl", [{"a": 1}])
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("x")
    run(source, tmp_path / "out")

    with pytest.raises(ContractError, match=r"must be new, empty .* but contains notes.txt"):
        run(source, tmp_path / "used")
    with pytest.raises(ContractError, match="packed with max_shard_rows = 1048576"):
        run(source, tmp_path / "out", max_shard_rows=5)
    write_jsonl(source, [{"a": 1}, {"a": 2}])
    with pytest.raises(ContractError, match="packed from other files: a name, size or"):
        run(source, tmp_path / "out")
    with pytest.raises(StorageError, match="cannot be used as a folder"):
        run(source, source)


def test_two_processes_do_not_pack_to_one_folder(tmp_path):
    source = write_jsonl(tmp_path / "t.jsonl", [{"a": 1}])

    with (
        hold_lock(tmp_path / "out" / ".lock", wait=False),
        pytest.raises(ContractError, match="Another process is packing"),
    ):
        run(source, tmp_path / "out")


# -- interruptions -----------------------------------------------------------------------------


def test_a_finished_packing_is_verified_and_kept(tmp_path):
    source = write_jsonl(tmp_path / "t.jsonl", records(1_000))
    messages = []
    run(source, tmp_path / "out", max_shard_rows=300)
    before = contents(tmp_path / "out")

    result = run(
        source,
        tmp_path / "out",
        max_shard_rows=300,
        on_progress=lambda state: messages.append(state.message),
    )

    assert (result.kept_shards, result.rows) == (4, 1_000)
    assert contents(tmp_path / "out") == before
    assert messages == ["verified 4 finished shards with 1,000 records"]


@pytest.mark.parametrize("damage", ["missing", "changed", "short"])
def test_a_damaged_shard_is_found_and_packed_again(tmp_path, damage):
    source = write_jsonl(tmp_path / "t.jsonl", records(1_000))
    run(source, tmp_path / "out", max_shard_rows=300)
    before = contents(tmp_path / "out")
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

    result = run(
        source,
        tmp_path / "out",
        max_shard_rows=300,
        on_progress=lambda state: messages.append(state.message),
    )

    assert result.kept_shards == 1
    assert "shard-00001.arrow is missing or damaged: packing again from record 300" in messages
    assert contents(tmp_path / "out") == before


def test_an_unfinished_or_damaged_folder_cannot_be_read(tmp_path):
    source = write_jsonl(tmp_path / "t.jsonl", [{"a": 1}])
    run(source, tmp_path / "out")
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
    found = [{"id": n, "text": "abc" * (n % 300)} for n in range(12_000)]
    match kind:
        case "jsonl":
            return write_jsonl(folder / "t.jsonl", found)
        case "csv":
            pd.DataFrame(found).to_csv(folder / "t.csv", index=False)
        case "parquet":
            pd.DataFrame(found).to_parquet(folder / "t.parquet", row_group_size=2_000)
        case "tar":
            with tarfile.open(folder / "t.tar", "w") as archive:
                for record in found:
                    member = tarfile.TarInfo(f"{record['id']}.txt")
                    member.size = len(record["text"])
                    archive.addfile(member, io.BytesIO(record["text"].encode()))
    return folder / f"t.{kind}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "tar"])
def test_a_packing_that_is_killed_three_times_has_the_same_bytes(tmp_path, kind):
    source = make_source(kind, tmp_path)
    run(source, tmp_path / "whole", max_shard_rows=397)
    command = [sys.executable, "-c", PROGRAM, str(source), str(tmp_path / "out")]
    rng = random.Random(kind)

    interrupted = 0
    for number in (1, 8, 16):
        process = subprocess.Popen(command)
        shard = tmp_path / "out" / f"shard-{number:05}.arrow"
        while not shard.exists() and process.poll() is None:
            time.sleep(0.001)
        time.sleep(rng.random() / 200)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        index = read_index(tmp_path / "out")
        interrupted += index is None or not index.complete
    result = run(source, tmp_path / "out", max_shard_rows=397)

    assert (result.rows, result.shards) == (12_000, 31)
    assert result.kept_shards >= 16
    assert interrupted >= 2  # a busy machine may let the last process finish
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_source(tmp_path):
    line = json.dumps({"text": "x" * 1_000}) + "\n"

    def peak(count):
        source = tmp_path / f"{count}.jsonl"
        with open(source, "w") as file:
            file.writelines(itertools.repeat(line, count))
        pool = pa.default_memory_pool()
        before = pool.bytes_allocated()
        highest = 0

        def watch(_):
            nonlocal highest
            highest = max(highest, pool.bytes_allocated() - before)

        tracemalloc.start()
        try:
            run(source, tmp_path / f"out{count}", max_shard_bytes=2**22, on_progress=watch)
            return tracemalloc.get_traced_memory()[1] + highest
        finally:
            tracemalloc.stop()

    peak(1_000)
    # More than a sample of 10,000 records.
    few, many = peak(20_000), peak(60_000)

    assert many < 1.1 * few + 1_000_000


def test_the_source_may_be_a_relative_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_jsonl(Path("t.jsonl"), [{"a": 1}])

    assert pack("t.jsonl", Path("out"), environ={}).folder == str(tmp_path / "out")
