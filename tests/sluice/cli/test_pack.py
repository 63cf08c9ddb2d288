"""``sluice pack`` writes shards, prints a summary, and reports user errors."""

import json

import pytest

from sluice.cli.app import run_command


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "reviews.jsonl"
    path.write_text("".join(json.dumps({"id": n, "text": "good"}) + "\n" for n in range(2_500)))
    return path


def test_summary_goes_to_stdout_and_progress_to_stderr(source, tmp_path, capsys):
    assert run_command(["pack", str(source), str(tmp_path / "out")]) == 0

    printed = capsys.readouterr()
    size = (tmp_path / "out" / "shard-00000.arrow").stat().st_size
    assert printed.out.startswith(f"2,500 records in 1 shard, {size:,} bytes: ")
    assert printed.out.endswith("out\n  id: int64\n  text: string\n")

    assert run_command(["pack", str(source), str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert "in 1 shard, 1 of them from an earlier packing" in printed.out
    assert "verified 1 finished shard with 2,500 records" in printed.err


def test_json_has_the_counts_and_types(source, tmp_path, capsys):
    arguments = ["pack", str(source), str(tmp_path / "out"), "--column", "id=float64", "--json"]

    assert run_command(arguments) == 0

    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["shards"], found["kept_shards"]) == (2_500, 1, 0)
    assert found["columns"] == {"id": "double", "text": "string"}
    assert found["folder"] == str(tmp_path / "out")


def test_format_option_overrides_the_file_ending(source, tmp_path):
    source.rename(tmp_path / "reviews.txt")
    arguments = ["pack", str(tmp_path / "reviews.txt"), str(tmp_path / "out")]

    assert run_command(arguments) == 2
    assert run_command([*arguments, "--format", "jsonl"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.jsonl", "OUT"], "There is no file"),
        (["SOURCE", "OUT", "--column", "id"], "A column must be NAME=TYPE, got 'id'"),
        (["SOURCE", "OUT", "--column", "id=number"], "A column must be NAME=TYPE"),
        (["SOURCE", "OUT", "--column", "x=int64"], "The source has no column 'x'"),
        (["SOURCE", "SOURCE"], "cannot be used as a folder"),
        (["SOURCE", "OUT", "--shard-mb", "0"], "shard-mb"),
        (["SOURCE"], "DIR"),
    ],
)
def test_user_error_exits_with_2(source, tmp_path, capsys, arguments, message):
    paths = {"SOURCE": str(source), "OUT": str(tmp_path / "out")}

    assert run_command(["pack", *(paths.get(argument, argument) for argument in arguments)]) == 2

    assert message in capsys.readouterr().err


def test_error_is_printed_as_json(tmp_path, capsys):
    assert run_command(["pack", "missing.csv", str(tmp_path / "out"), "--json"]) == 2

    assert json.loads(capsys.readouterr().out)["error"] == "SourceError"
