"""Runs interrupted by Ctrl-C, SIGKILL or a full disk, and their resumption."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest
import yaml

from sluice.base.home import Home
from sluice.config.pipeline import PipelineSettings, read_pipeline
from sluice.pipelines.instance import open_instance
from sluice.training.members import TrainedModels
from tests.pipelines.conftest import ECHO, Runner, home_at
from tests.pipelines.test_line import materialize_alone
from tests.support.small_disk import small_disk

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture
def long_echo(tmp_path: Path) -> Path:
    """Return a pipeline whose training takes some seconds in two processes."""
    document = yaml.safe_load(ECHO.read_text())
    attributes = document["attributes"]
    attributes["name"] = "long_echo"
    attributes["workload_settings"] = {"folds": {"num_folds": 2}}
    attributes["model"] = {"architecture": "gru", "hidden": 32}
    attributes["compute"] = {"workers": 2}
    attributes["training"] |= {
        "max_epochs": 10,
        "patience_epochs": 10,
        "checkpoint_every_epochs": 1,
    }
    path = tmp_path / "long_echo.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def start_sluice(path: Path, home: Home, *command: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "sluice", *(command or ("run", "--no-rehearsal")), str(path)],
        cwd=ROOT,
        env=os.environ | {"SLUICE_HOME": str(home.root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def checkpoints(home: Home) -> set[Path]:
    return set(home.runs.glob("*/*.safetensors*"))


def wait_for_training(process: "subprocess.Popen[bytes]", home: Home, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not checkpoints(home):
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < deadline, "no checkpoint appeared"
        time.sleep(0.05)


def is_group_running(group: int) -> bool:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            return True
    return False


def read_candidate(home: Home) -> str:
    record = (home.records / "long_echo" / "trained_models.json").read_bytes()
    return TrainedModels.model_validate_json(record).candidate


def kill_during_training(long_echo: Path, home: Home) -> None:
    process = start_sluice(long_echo, home)
    wait_for_training(process, home, 240)
    time.sleep(0.7)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (home.records / "long_echo" / "trained_models.json").exists()


def test_run_resumed_after_ctrl_c_equals_an_uninterrupted_run(
    long_echo: Path, home: Home, tmp_path: Path
) -> None:
    """Ctrl-C ends the run within seconds and prints what is kept."""
    process = start_sluice(long_echo, home)
    wait_for_training(process, home, 240)

    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=15)

    assert process.returncode == 130
    assert "Traceback" not in stderr.decode()
    stderr_text = " ".join(stderr.decode().split())
    assert re.search(r"Training was stopped with \d of 10 fold runs finished", stderr_text)
    assert "started fold runs resume from their last checkpoint" in stderr_text
    assert not is_group_running(process.pid)
    assert not (home.records / "long_echo" / "trained_models.json").exists()
    uninterrupted = home_at(tmp_path / "whole")
    shutil.copytree(home.root, uninterrupted.root)
    shutil.rmtree(uninterrupted.runs)
    for each in (home, uninterrupted):
        assert materialize_alone(read_pipeline(long_echo), each, "trained_models").success
    assert read_candidate(home) == read_candidate(uninterrupted)


@pytest.mark.exhaustive
def test_run_resumed_after_sigkill_equals_an_uninterrupted_run(
    long_echo: Path, home: Home, tmp_path: Path, run: Runner
) -> None:
    kill_during_training(long_echo, home)

    run(read_pipeline(long_echo), home)
    uninterrupted = home_at(tmp_path / "whole")
    run(read_pipeline(long_echo), uninterrupted)

    assert read_candidate(home) == read_candidate(uninterrupted)
    with open_instance(home) as instance:
        statuses = [run.status for run in instance.get_runs()]
    assert dg.DagsterRunStatus.STARTED not in statuses
    assert statuses.count(dg.DagsterRunStatus.FAILURE) == 1


@pytest.mark.exhaustive
def test_full_disk_during_a_checkpoint_is_reported_and_the_next_run_works(
    long_echo: Path, home: Home, echo: PipelineSettings, run: Runner
) -> None:
    with small_disk(home.runs, kib=48):
        process = start_sluice(long_echo, home)
        _, stderr = process.communicate(timeout=300)
        temporary_files = [
            p for p in home.runs.rglob("*") if p.name.startswith(".") and p.is_file()
        ]

    assert process.returncode == 2, stderr.decode()
    assert "No room left to write" in stderr.decode()
    assert "Traceback" not in stderr.decode()
    assert not temporary_files
    assert run(echo, home).version == 1


@pytest.fixture
def searching_echo(tmp_path: Path) -> Path:
    document = yaml.safe_load(ECHO.read_text())
    document["attributes"] |= {
        "name": "searching_echo",
        "model": {"architecture": "gru", "hidden": 24},
        "search": {"num_trials": 6, "grace_epochs": 2},
    }
    document["attributes"]["training"] |= {"max_epochs": 8, "patience_epochs": 8}
    path = tmp_path / "searching_echo.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def read_reports(home: Home) -> list[bytes]:
    journals = home.searches.glob("*/journal.jsonl")
    return [line for each in journals for line in each.read_bytes().splitlines()[1:]]


@pytest.mark.exhaustive
def test_ctrl_c_during_a_search_keeps_every_report(searching_echo: Path, home: Home) -> None:
    """The search ends within seconds, leaves no process, and the next start resumes it."""
    process = start_sluice(searching_echo, home, "tune")
    deadline = time.monotonic() + 240
    while sum(b'"result"' in line for line in read_reports(home)) < 3:
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < deadline, "no trial reported"
        time.sleep(0.05)

    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    reports_before = read_reports(home)

    assert process.returncode == 130, stderr.decode()
    assert "of 6 trials ended" in stderr.decode()
    assert "Run again to resume" in stderr.decode()
    assert "Traceback" not in stderr.decode()
    assert not is_group_running(process.pid)
    resumed = start_sluice(searching_echo, home, "tune")
    stdout, stderr = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, stderr.decode()
    assert "of 6 has the lowest validation loss" in stdout.decode()
    assert read_reports(home)[: len(reports_before)] == reports_before
