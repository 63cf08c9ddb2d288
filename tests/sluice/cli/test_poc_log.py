"""LOG-1: ``sluice poc --log FILE`` says what a log holds and leaves with 0, 1 or 2."""

import json
import subprocess
import sys

import pytest

from sluice.cli.app import run_command
from sluice.cli.poc_log import validate_file
from sluice.eventlog.event_log import EventLog

GOOD = (
    {"event": "fold_start", "fold_id": 0, "train_size": 9, "val_size": 3, "test_size": 3},
    {"event": "epoch_complete", "epoch": 1, "train_loss": float("nan"), "val_loss": 2.0},
    {"event": "fold_complete", "fold_id": 0, "test_sharpe": 0.5},
)
BAD = {"event": "epoch_complete", "epoch": 2, "train_loss": 1.0}


@pytest.fixture
def log(tmp_path):
    def write(*records, text=""):
        path = tmp_path / "events.ndjson"
        path.write_text("".join(json.dumps(record) + "\n" for record in records) + text)
        return path

    return write


def test_a_valid_complete_log_is_counted_and_leaves_with_0(log, capsys):
    assert run_command(["poc", "--log", str(log(*GOOD))]) == 0

    said = capsys.readouterr().out
    assert "The log is valid: 3 events, 0 problems, complete." in said
    assert "train_loss is nan" in said
    assert "fold_complete" in said


def test_a_torn_log_is_incomplete_and_leaves_with_1(log, capsys):
    assert run_command(["poc", "--log", str(log(*GOOD, text='{"event": "fo'))]) == 1

    said = capsys.readouterr().out
    assert "The log is valid: 3 events, 0 problems, incomplete." in said
    assert "The last line is torn" in said
    assert "The run is still in progress, or it crashed" in said


def test_a_log_with_nothing_but_a_start_leaves_with_1(log, capsys):
    start = {"event": "experiment_start", "architecture": "gru", "features": [], "config": {}}

    assert run_command(["poc", "--log", str(log(start))]) == 1

    assert "no experiment_complete follows" in capsys.readouterr().out


def test_an_invalid_log_is_told_by_line_event_and_field_and_leaves_with_1(log, capsys):
    assert run_command(["poc", "--log", str(log(*GOOD, BAD, GOOD[1]))]) == 1

    said = capsys.readouterr().out
    assert "4   epoch_complete   field 'val_loss' is missing" in said
    assert "The log is not valid: 5 events, 1 problem," in said
    assert "do:" in said


def test_a_log_of_the_writer_without_metrics_is_valid_and_noted(tmp_path, capsys):
    path = tmp_path / "events.ndjson"
    with EventLog(path) as events:
        events.write("fold_complete", fold_id=0)
        events.write("experiment_complete", total_folds=1, elapsed_seconds=1.0)

    assert run_command(["poc", "--log", str(path)]) == 0

    said = capsys.readouterr().out
    assert "no number is named mean_*" in said
    assert "The log is valid: 2 events, 0 problems, complete." in said


def test_a_table_is_not_called_a_torn_log(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("a,b\n1,2")

    assert run_command(["poc", "--log", str(tmp_path / "t.csv")]) == 1

    said = " ".join(capsys.readouterr().out.split())
    assert "this is not an event log" in said
    assert "torn" not in said
    assert "The file is not an event log" in said


def test_a_file_that_is_not_there_leaves_with_2(tmp_path, capsys):
    assert run_command(["poc", "--log", str(tmp_path / "none.ndjson")]) == 2

    assert "none.ndjson (No such file or directory)" in capsys.readouterr().err


def test_an_override_that_nothing_would_follow_is_refused(log, capsys):
    assert run_command(["poc", "--log", str(log(*GOOD)), "--set", "model.hidden=8"]) == 2
    assert run_command(["poc", "--schema", "--set", "model.hidden=8"]) == 2

    assert capsys.readouterr().err.count("--set applies only when the gate runs") == 2


def test_machines_get_strict_json_with_every_problem(log, capsys):
    assert run_command(["poc", "--json", "--log", str(log(*GOOD, BAD))]) == 1

    found = json.loads(
        capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON")
    )
    assert (found["valid"], found["complete"]) == (False, True)
    assert found["counts"]["epoch_complete"] == 2
    assert found["problems"] == [
        {
            "kind": "missing field",
            "line": 4,
            "event": "epoch_complete",
            "field": "val_loss",
            "what": "field 'val_loss' is missing",
        }
    ]
    assert [p["line"] for p in found["non_finite"]] == [2]


def test_a_workload_brings_its_own_metric(log, capsys):
    path = log(*GOOD)

    assert not validate_file(path, "tests.support.synthetic:SineWorkload", as_json=False)
    assert "field 'test_loss' is missing" in capsys.readouterr().out
    assert validate_file(path, "sp500_volatility", as_json=False)


def test_many_problems_do_not_flood_the_screen(log, capsys):
    assert not validate_file(log(*[BAD] * 500), None, as_json=False)

    said = capsys.readouterr().out
    assert "and 480 more" in said
    assert len(said.splitlines()) < 60


def test_markup_in_a_log_is_text(log, capsys):
    assert not validate_file(log({"event": "[red]fold[/blue]"}), None, as_json=False)

    assert "[red]fold[/blue]" in capsys.readouterr().out


@pytest.mark.slow
def test_a_log_is_looked_at_without_torch(log):
    script = (
        "import sys; from sluice.cli.app import run_command; "
        f"run_command(['poc', '--log', {str(log(*GOOD))!r}]); "
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert done.stderr.strip() == "False"
