"""``sluice trace``: programs after two dashes, and reports (TRACE-1)."""

import gc
import json
import sys

import pytest
import torch

from sluice.cli.app import run_command
from sluice.trace.attach import traced
from sluice.trace.settings import TraceSettings
from tests.support.traced import faulty, healthy


@pytest.fixture
def traces(tmp_path):
    """Return a function that traces a program into a folder and returns it."""

    def make(program):
        torch.manual_seed(0)
        with traced(tmp_path, TraceSettings()):
            program()
        return str(tmp_path)

    gc.freeze()  # optimizers that other tests left have a number in a trace, too
    yield make
    gc.unfreeze()


def test_a_report_names_the_fault_and_leaves_with_one(traces, capsys):
    folder = traces(faulty.clip_after_step)

    assert run_command(["trace", "report", folder]) == 1
    said = capsys.readouterr().out
    assert "error, step 1: clip after step (99%)" in said
    assert "seen: Adam: gradients were clipped" in said
    assert "do:   Clip between backward() and step()." in said


def test_a_report_is_also_json(traces, capsys):
    folder = traces(healthy.accumulation)

    assert run_command(["trace", "report", folder, "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert (report["steps"], report["conclusion"]["ending"], report["diagnoses"]) == (
        3,
        "ended",
        [],
    )


def test_a_folder_without_traces_is_the_users_mistake(tmp_path, capsys):
    assert run_command(["trace", "report", str(tmp_path)]) == 2
    assert "contains no trace" in capsys.readouterr().err


def test_help_lists_the_options_of_a_run_with_an_example(capsys):
    assert run_command(["trace", "--help"]) == 0
    said = capsys.readouterr().out
    for part in ("--out", "--stop-after", "--skip-nonfinite", "report", "Example: sluice trace"):
        assert part in said


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["python", "train.py"], "sluice trace [OPTIONS] -- python train.py\n"),
        (["--out", "t", "python", "a b.py", "-h"], "-- python 'a b.py' -h\n"),
        (["--out", "t", "train.py", "-h"], "sluice trace [OPTIONS] -- python train.py -h\n"),
        (["reprot", "t"], "Did you mean 'report'?"),
        (["--out", "t", "report", "t"], "report, with their options after their name"),
        (["--out", "t", "report", "t"], "Leave out the options before 'report'. For"),
    ],
)
def test_a_program_without_two_dashes_is_told_of_them(given, told, capsys):
    assert run_command(["trace", *given]) == 2
    said = capsys.readouterr().err
    assert "must follow two dashes" in said
    assert told in said


def test_what_follows_two_dashes_is_run_with_its_own_options(tmp_path, capfd):
    program = "import sys; print(sys.argv[1:]); sys.exit(9)"
    out = ["--out", str(tmp_path / "traces")]

    code = run_command(["trace", *out, "--", sys.executable, "-c", program, "--json", "-h"])

    said = capfd.readouterr()
    assert code == 9
    assert said.out == "['--json', '-h']\n"
    assert "no trace was recorded" in said.err
