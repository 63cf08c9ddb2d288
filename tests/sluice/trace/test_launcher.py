"""Traced programs: same output, same exit code, and a trace (TRACE-1)."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.base.errors import ContractError
from sluice.trace.launcher import launch, traced_environment
from sluice.trace.report.trace_report import report_traces
from sluice.trace.settings import TraceSettings
from sluice.trace.trace_reader import find_traces, read_trace

SCRIPT = str(Path(__file__).parents[2] / "support" / "traced" / "script.py")
SHORT = TraceSettings(flush_s=0)


@pytest.fixture
def run(tmp_path, clean_environ):
    """Return a function that runs the script traced in an empty folder."""

    def traced_run(mode, *python, settings=SHORT):
        out = tmp_path / "traces"
        environ = traced_environment(out, settings, clean_environ)
        command = [sys.executable, *python, SCRIPT, mode]
        result = subprocess.run(
            command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        return result, out

    return traced_run


@pytest.fixture
def clean_environ():
    """Return an environment without the repository on the path."""
    return {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}


def run_untraced(mode, clean_environ, cwd):
    return subprocess.run(
        [sys.executable, SCRIPT, mode],
        env=clean_environ,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_crashing_program_has_the_same_output_and_exit_code_as_without_tracing(
    run, clean_environ, tmp_path
):
    untraced = run_untraced("crash", clean_environ, tmp_path)
    result, out = run("crash")

    assert (result.returncode, result.stdout, result.stderr) == (
        1,
        untraced.stdout,
        untraced.stderr,
    )
    (folder,) = find_traces(out)
    trace = read_trace(folder)
    assert trace.end.raised == "ValueError: of the program itself"
    assert trace.num_steps == 8
    assert trace.start.program[-1] == "crash"


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "code"), [("signals", 9), ("no optimizer", 2)])
def test_an_unusual_program_behaves_as_without_tracing(run, clean_environ, tmp_path, mode, code):
    untraced = run_untraced(mode, clean_environ, tmp_path)
    result, out = run(mode)

    assert (result.returncode, result.stdout, result.stderr) == (
        code,
        untraced.stdout,
        untraced.stderr,
    )
    assert [report.conclusion.ending for report in report_traces(out)] == ["ended"]


@pytest.mark.slow
def test_a_full_disk_ends_the_trace_and_not_the_program(run, clean_environ, tmp_path):
    untraced = run_untraced("full", clean_environ, tmp_path)
    result, out = run("full")

    assert (result.returncode, result.stdout) == (7, untraced.stdout)
    (message,) = result.stderr.splitlines()
    assert re.search(
        rf"tracing stopped \(No room left to write {out}/\S+: File too large, "
        r"[\d,]+ bytes are free on its disk\); the program continues\.",
        message,
    )
    for file in out.rglob("*.ndjson"):  # whole lines, or nothing
        assert file.read_bytes()[-1:] in (b"", b"\n")


@pytest.mark.exhaustive
def test_large_output_is_passed_through(run):
    result, out = run("much to say")

    assert len(result.stdout) > 256 * 1024 * 1024
    assert (result.returncode, result.stderr) == (7, "")
    assert sum(file.stat().st_size for file in out.rglob("*") if file.is_file()) < 1024 * 1024


@pytest.mark.slow
def test_a_killed_program_and_its_fork_have_traces_up_to_the_last_flush(run):
    result, out = run("fork and kill")

    reports = report_traces(out)
    assert result.returncode == -9
    assert sorted(report.steps for report in reports) == [4, 8]
    for report in reports:  # a fork that ends with os._exit writes no end record either
        assert report.conclusion.ending == "killed or still running"
        assert [(d.fault, d.finding.severity) for d in report.diagnoses] == [
            ("clip after step", "error")
        ]


def test_a_program_without_torch_writes_no_trace(run):
    result, out = run("no torch")

    assert (result.returncode, result.stdout, result.stderr) == (3, "nothing to train\n", "")
    assert not out.exists()


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("raise SystemExit(5)", 5), ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 143)],
)
def test_the_exit_code_is_that_of_the_program(tmp_path, clean_environ, code, exit_code):
    command = [sys.executable, "-c", code]

    assert launch(command, out=tmp_path, settings=SHORT, environ=clean_environ) == exit_code


@pytest.mark.parametrize(
    ("command", "match"), [([], "requires a command"), (["no-such-program"], "Cannot start")]
)
def test_a_command_that_cannot_be_started_is_reported(tmp_path, clean_environ, command, match):
    with pytest.raises(ContractError, match=match):
        launch(command, out=tmp_path, settings=SHORT, environ=clean_environ)


def test_advice_for_a_python_file_names_its_interpreter(tmp_path, clean_environ, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    with pytest.raises(ContractError, match=r"Cannot start 'train\.py'") as error:
        launch(["train.py"], out=tmp_path, settings=SHORT, environ=clean_environ)

    assert "sluice trace -- python train.py" in error.value.fix


def test_an_existing_sitecustomize_still_runs(tmp_path, clean_environ):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.marked = True")
    environ = traced_environment(
        tmp_path / "out", SHORT, {**clean_environ, "PYTHONPATH": str(tmp_path)}
    )
    code = "import sys, sitecustomize; print(sys.marked, [p for p in sys.path if 'injected' in p])"
    result = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )

    assert result.stdout == "True []\n"
