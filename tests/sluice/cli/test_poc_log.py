"""``sluice poc --log FILE`` validates an event log and exits with 0, 1 or 2 (LOG-1)."""

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
    def write_log(*records, text=""):
        path = tmp_path / "events.ndjson"
        path.write_text("".join(json.dumps(record) + "\n" for record in records) + text)
        return path

    return write_log


def test_valid_complete_log_is_summarized_and_exits_with_0(log, capsys):
    assert run_command(["poc", "--log", str(log(*GOOD))]) == 0

    printed = capsys.readouterr().out
    assert "The log is valid: 3 events, 0 problems, complete." in printed
    assert "train_loss is nan" in printed
    assert "fold_complete" in printed


def test_truncated_log_is_incomplete_and_exits_with_1(log, capsys):
    assert run_command(["poc", "--log", str(log(*GOOD, text='{"event": "fo'))]) == 1

    printed = capsys.readouterr().out
    assert "The log is valid: 3 events, 0 problems, incomplete." in printed
    assert "The last line is torn" in printed
    assert "The run is still in progress, or it crashed" in printed


def test_log_with_only_a_start_exits_with_1(log, capsys):
    start = {"event": "experiment_start", "architecture": "gru", "features": [], "config": {}}

    assert run_command(["poc", "--log", str(log(start))]) == 1

    assert "no experiment_complete follows" in capsys.readouterr().out


def test_invalid_log_is_reported_by_line_event_and_field_and_exits_with_1(log, capsys):
    assert run_command(["poc", "--log", str(log(*GOOD, BAD, GOOD[1]))]) == 1

    printed = capsys.readouterr().out
    assert "4   epoch_complete   field 'val_loss' is missing" in printed
    assert "The log is not valid: 5 events, 1 problem," in printed
    assert "do:" in printed


def test_log_without_metrics_is_valid_with_a_note(tmp_path, capsys):
    path = tmp_path / "events.ndjson"
    with EventLog(path) as events:
        events.write("fold_complete", fold_id=0)
        events.write("experiment_complete", total_folds=1, elapsed_seconds=1.0)

    assert run_command(["poc", "--log", str(path)]) == 0

    printed = capsys.readouterr().out
    assert "no number is named mean_*" in printed
    assert "The log is valid: 2 events, 0 problems, complete." in printed


def test_csv_file_is_not_reported_as_a_truncated_log(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("a,b\n1,2")

    assert run_command(["poc", "--log", str(tmp_path / "t.csv")]) == 1

    printed = " ".join(capsys.readouterr().out.split())
    assert "this is not an event log" in printed
    assert "torn" not in printed
    assert "The file is not an event log" in printed


def test_missing_file_exits_with_2(tmp_path, capsys):
    assert run_command(["poc", "--log", str(tmp_path / "none.ndjson")]) == 2

    assert "none.ndjson (No such file or directory)" in capsys.readouterr().err


def test_override_is_refused_when_the_gate_does_not_run(log, capsys):
    assert run_command(["poc", "--log", str(log(*GOOD)), "--set", "model.hidden=8"]) == 2
    assert run_command(["poc", "--schema", "--set", "model.hidden=8"]) == 2

    assert capsys.readouterr().err.count("--set applies only when the gate runs") == 2


def test_json_is_strict_and_contains_every_problem(log, capsys):
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


def test_workload_decides_the_required_metric(log, capsys):
    path = log(*GOOD)

    assert not validate_file(path, "tests.support.synthetic:SineWorkload", as_json=False)
    assert "field 'test_loss' is missing" in capsys.readouterr().out
    assert validate_file(path, "sp500_volatility", as_json=False)


def test_long_lists_of_problems_are_shortened(log, capsys):
    assert not validate_file(log(*[BAD] * 500), None, as_json=False)

    printed = capsys.readouterr().out
    assert "and 480 more" in printed
    assert len(printed.splitlines()) < 60


def test_markup_in_a_log_is_printed_as_text(log, capsys):
    assert not validate_file(log({"event": "[red]fold[/blue]"}), None, as_json=False)

    assert "[red]fold[/blue]" in capsys.readouterr().out


@pytest.mark.slow
def test_log_validation_does_not_import_torch(log):
    script = (
        "import sys; from sluice.cli.app import run_command; "
        f"run_command(['poc', '--log', {str(log(*GOOD))!r}]); "
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert done.stderr.strip() == "False"
