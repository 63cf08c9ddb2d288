"""``sluice trace``: running programs after two dashes, and reports (TRACE-1)."""

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
    """Return a function that traces a program and returns the folder of the trace."""

    def trace_program(program):
        torch.manual_seed(0)
        with traced(tmp_path, TraceSettings()):
            program()
        return str(tmp_path)

    gc.freeze()  # keeps optimizers of other tests out of the trace
    yield trace_program
    gc.unfreeze()


def test_report_names_the_fault_and_exits_with_1(traces, capsys):
    folder = traces(faulty.clip_after_step)

    assert run_command(["trace", "report", folder]) == 1
    printed = capsys.readouterr().out
    assert "error, step 1: clip after step (99% confidence)" in printed
    assert "steps were followed by a clipping" in printed
    assert "do:   Clip between backward() and step()." in printed


def test_report_is_printed_as_json(traces, capsys):
    folder = traces(healthy.accumulation)

    assert run_command(["trace", "report", folder, "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert (report["steps"], report["conclusion"]["ending"], report["diagnoses"]) == (
        3,
        "ended",
        [],
    )


def test_folder_without_traces_is_a_user_error(tmp_path, capsys):
    assert run_command(["trace", "report", str(tmp_path)]) == 2
    assert "contains no trace" in capsys.readouterr().err


def test_help_lists_the_options_with_an_example(capsys):
    assert run_command(["trace", "--help"]) == 0
    printed = capsys.readouterr().out
    for part in ("--out", "--stop-after", "--skip-nonfinite", "report", "Example: sluice trace"):
        assert part in printed


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["python", "train.py"], "sluice trace [OPTIONS] -- python train.py\n"),
        (["--out", "t", "python", "a b.py", "-h"], "-- python 'a b.py' -h\n"),
        (["--out", "t", "train.py", "-h"], "sluice trace [OPTIONS] -- python train.py -h\n"),
        (["reprot", "t"], "Did you mean 'report'?"),
        (
            ["--out", "t", "report", "t"],
            "report are accepted, with the options of the command after",
        ),
        (["--out", "t", "report", "t"], "Leave out the options before 'report'. To list"),
    ],
)
def test_missing_two_dashes_before_the_program_are_reported(arguments, hint, capsys):
    assert run_command(["trace", *arguments]) == 2
    printed = capsys.readouterr().err
    assert "must follow two dashes" in printed
    assert hint in printed


def test_program_after_two_dashes_receives_its_own_options(tmp_path, capfd):
    program = "import sys; print(sys.argv[1:]); sys.exit(9)"
    out = ["--out", str(tmp_path / "traces")]

    code = run_command(["trace", *out, "--", sys.executable, "-c", program, "--json", "-h"])

    printed = capfd.readouterr()
    assert code == 9
    assert printed.out == "['--json', '-h']\n"
    assert "no trace was recorded" in printed.err
