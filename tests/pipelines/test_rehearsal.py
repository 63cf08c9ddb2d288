"""Rehearsals with real servers, challenger processes and HTTP requests (ROLL-1, ROLL-2)."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import yaml
from rich.console import Console

from sluice.base.home import Home
from sluice.cli.app import run_command
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.pipelines.rehearsal import with_rehearsal
from sluice.pipelines.run import RunReport
from sluice.pipelines.summary import print_summary
from tests.pipelines.conftest import ECHO, home_at, ledger_of

pytestmark = pytest.mark.slow


@pytest.fixture
def rehearsed(green: tuple[Home, RunReport], monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("SLUICE_HOME", str(green[0].root))
    return green[0]


def rehearsal_processes() -> list[psutil.Process]:
    found = psutil.Process().children(recursive=True)
    return [p for p in found if "rehearsal" in " ".join(p.cmdline())]


def is_registry_unchanged(home: Home) -> bool:
    with ledger_of(home) as ledger:
        return ledger.production_number("echo") == 1 and len(ledger.versions("echo")) == 1


def read_json(capfd: pytest.CaptureFixture[str]) -> dict[str, object]:
    printed: dict[str, object] = json.loads(capfd.readouterr().out)
    return printed


def test_run_that_promotes_ends_with_a_healthy_rehearsal(
    green: tuple[Home, RunReport], echo: PipelineSettings
) -> None:
    home, report = green
    assert report.promoted
    after = with_rehearsal(report, resolve(echo), home, Console(stderr=True))
    assert after.rehearsal_good, after.rehearsal
    assert after.rehearsal.startswith("rehearsed, fault none: promoted after ")
    assert ", 0 failed." in after.rehearsal
    assert after.wall_seconds > report.wall_seconds
    (page,) = home.reports.glob("rehearsals/echo/none-*.html")
    assert "as expected" in page.read_text()
    assert is_registry_unchanged(home)
    assert not rehearsal_processes()
    again = report.model_copy(update={"promoted": False})
    assert with_rehearsal(again, resolve(echo), home, Console(stderr=True)) is again


def test_rehearsal_that_did_not_run_is_reported_in_the_summary(
    green: tuple[Home, RunReport], echo: PipelineSettings, tmp_path: Path
) -> None:
    home, report = green
    empty = home_at(tmp_path / "empty")
    with ledger_of(empty):
        pass
    after = with_rehearsal(report, resolve(echo), empty, Console(stderr=True))
    assert not after.rehearsal_good
    page = io.StringIO()
    print_summary(after, home, Console(file=page, width=200), pipeline="echo", program="sluice")
    assert (
        "  rollout  the rehearsal did not run: echo has no version in production" in page.getvalue()
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", ["errors", "latency", "nan", "drift", "crash", "no_traffic"])
def test_each_planted_fault_ends_as_expected(
    fault: str, rehearsed: Home, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["rollout", "rehearse", str(ECHO), "--fault", fault, "--seconds", "60", "--json"]
    code = run_command(arguments)
    found = read_json(capfd)
    assert (code, found["flaws"], found["failed"]) == (0, [], 0)
    assert found["ended"] == ("paused" if fault == "no_traffic" else "rolled_back")
    assert (found["sent"] == 0) == (fault == "no_traffic")
    assert is_registry_unchanged(rehearsed)
    assert not rehearsal_processes()


@pytest.mark.exhaustive
def test_worse_model_is_detected_by_labelled_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    document = yaml.safe_load(ECHO.read_text())
    document["attributes"]["workload_settings"] = {"num_rows": 4000}
    path = tmp_path / "long.yaml"
    path.write_text(yaml.safe_dump(document))
    assert run_command(["run", "--no-rehearsal", str(path)]) == 0
    capfd.readouterr()
    assert run_command(["rollout", "rehearse", str(path), "--fault", "quality", "--json"]) == 0
    found = read_json(capfd)
    assert (found["ended"], found["flaws"]) == ("rolled_back", [])
    assert "Labelled rows show that the challenger is worse" in str(found["reason"])


@pytest.mark.exhaustive
@pytest.mark.usefixtures("rehearsed")
def test_ctrl_c_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "sluice", "rollout", "rehearse", str(ECHO)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    parent = psutil.Process(process.pid)
    for _ in range(600):
        if len(parent.children(recursive=True)) >= 2:  # the server and its challenger
            break
        time.sleep(0.1)
    processes = parent.children(recursive=True)
    assert len(processes) >= 2
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 130
    psutil.wait_procs(processes, timeout=5)
    assert not [p for p in processes if p.is_running()]
    assert not list(tmp_path.glob("sluice-rehearsal-*"))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--fault", "errrors"], 2, ("errors", "errrors", "Did you mean")),
        (["--seconds", "3"], 2, ("20 to 3600", "got 3")),
        (["--seconds", "nan"], 2, ("20 to 3600", "got nan")),
        (["--fault", "quality"], 2, ("gate.min_rows", "held-out rows")),
    ],
)
@pytest.mark.usefixtures("rehearsed")
def test_invalid_options_are_reported(
    arguments: list[str],
    code: int,
    words: tuple[str, ...],
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run_command(["rollout", "rehearse", str(ECHO), *arguments]) == code
    err = capfd.readouterr().err
    for word in (*words, "do:"):
        assert word in err


def test_rehearsal_without_a_version_in_production_is_refused(
    home: Home, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(home.root))
    with ledger_of(home):
        pass
    assert run_command(["rollout", "rehearse", str(ECHO)]) == 1
    assert "no version in production" in capfd.readouterr().err
    assert run_command(["rollout", "watch", "echo", "--once"]) != 0
    assert "no model" in capfd.readouterr().err


@pytest.mark.usefixtures("rehearsed")
def test_port_in_use_is_reported_and_leaves_no_process(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert run_command(["rollout", "rehearse", str(ECHO), "--port", port]) == 2
    err = capfd.readouterr().err
    assert f"port {port}" in err
    assert not rehearsal_processes()


def test_model_that_is_not_served_is_not_rehearsed():
    """A rehearsal would fail here, because home and console are None."""
    report = SimpleNamespace(promoted=True)

    unserved = SimpleNamespace(is_served=False)

    found = with_rehearsal(report, SimpleNamespace(workload=unserved), None, None)

    assert found is report
