"""Plain Ray Tune programs that are killed and rerun make the same decisions."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

from sluice.tuning.resumable.events import EventLines

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[4]


@pytest.fixture
def address():
    """Return the address of a cluster with two CPUs, which every program of a test joins.

    Each test has its own: Ray may never give back what a killed driver's placement group held.
    """
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


def start(*command):
    return subprocess.Popen(
        [sys.executable, "-P", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "RAY_AIR_NEW_OUTPUT": "0",
            "RAY_AUTH_MODE": "token",
        },
        start_new_session=True,
    )


def start_study(folder, address, **arguments):
    folder.mkdir(exist_ok=True)
    arguments = {"folder": str(folder), "address": address, **arguments}
    return start("-m", "tests.support.plain_tune", json.dumps(arguments))


def start_example(folder, address):
    return start("examples/resumable_tune.py", str(folder), address)


def events(folder):
    """Return the decisions: the journal without its header and without checkpoint paths."""
    path = folder / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    whole = [json.loads(line) for line in lines[1:] if line.endswith(b"\n")]
    return [{k: line[k] for k in line if k not in ("checkpoint", "folder")} for line in whole]


def overwritten_checkpoints(folder):
    """Return the events whose checkpoint does not contain the reported state."""
    lines, wrong = EventLines(), []
    for line in (folder / "journal.jsonl").read_text().splitlines()[1:]:
        if "config" in (line := json.loads(line)):
            continue
        event = lines.decode(line)
        if event.checkpoint:
            state = json.loads(Path(event.checkpoint, "state.json").read_text())
            if state != [event.result["loss"], event.result["epoch"]]:
                wrong.append((event, state))
    return wrong


def kill_after(program, folder, number, timeout_s=120):
    """Kill a program when its journal has this number of events."""
    deadline = time.monotonic() + timeout_s
    while len(events(folder)) < number:
        assert time.monotonic() < deadline, "The program makes no progress."
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(timeout=0.05)
        assert program.poll() is None, "The program ended before it could be killed."
    os.killpg(program.pid, signal.SIGKILL)
    program.communicate()


def finish(program):
    printed, _ = program.communicate(timeout=200)
    assert program.returncode == 0
    return printed.strip().splitlines()[-1]


@pytest.mark.exhaustive
def test_killed_example_makes_the_same_decisions(address, tmp_path):
    whole = start_example(tmp_path / "whole", address)
    best = finish(whole)
    expected = events(tmp_path / "whole")
    killed = start_example(tmp_path / "killed", address)
    kill_after(killed, tmp_path / "killed", len(expected) // 2)

    assert finish(start_example(tmp_path / "killed", address)) == best
    assert events(tmp_path / "killed") == expected
    assert overwritten_checkpoints(tmp_path / "whole") == []
    assert overwritten_checkpoints(tmp_path / "killed") == []
    assert len(expected) > 30


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "study", ["asha", "median", "hyperband", "pbt", "pb2", "bohb", "hyperopt", "none"]
)
def test_killed_ordered_study_decides_the_same_on_one_and_two_workers(study, address, tmp_path):
    for module in {"bohb": ["hpbandster", "ConfigSpace"], "hyperopt": ["hyperopt"]}.get(study, ()):
        pytest.importorskip(module)
    arguments = {"study": study, "ordered": True}
    whole = start_study(tmp_path / "whole", address, workers=1, **arguments)
    assert json.loads(finish(whole))[:2] == [8, 0]
    expected, folder = events(tmp_path / "whole"), tmp_path / "killed"
    for number in (len(expected) // 4, len(expected) // 2):
        killed = start_study(folder, address, workers=2, **arguments)
        kill_after(killed, folder, number)

    assert json.loads(finish(start_study(folder, address, workers=2, **arguments)))[:2] == [8, 0]
    assert events(folder) == expected
    assert overwritten_checkpoints(folder) == []
    assert len(expected) > 20


@pytest.mark.exhaustive
@pytest.mark.parametrize("study", ["asha", "hyperband", "pbt", "bohb"])
def test_killed_unordered_study_keeps_its_decisions(study, address, tmp_path):
    if study == "bohb":
        pytest.importorskip("hpbandster")
        pytest.importorskip("ConfigSpace")
    arguments = {"study": study, "ordered": False, "workers": 2}
    killed = start_study(tmp_path / "killed", address, **arguments)
    kill_after(killed, tmp_path / "killed", 30)
    before = events(tmp_path / "killed")
    again = start_study(tmp_path / "killed", address, **arguments)

    assert json.loads(finish(again))[:2] == [8, 0]
    assert events(tmp_path / "killed")[: len(before)] == before
    assert overwritten_checkpoints(tmp_path / "killed") == []


@pytest.mark.exhaustive
def test_trial_that_tune_abandons_ends_the_study_and_is_retried(address, tmp_path):
    arguments = {"study": "none", "ordered": True, "workers": 2, "errors": "stop"}
    failing = start_study(tmp_path / "study", address, fails_at=4, **arguments)
    number, config, error = json.loads(finish(failing))
    before = events(tmp_path / "study")

    assert "This trial cannot be trained." in error
    assert config["lr"] == before[number]["config"]["lr"]
    assert all(event.get("kind") != "error" for event in before)
    again = start_study(tmp_path / "study", address, **arguments)
    assert json.loads(finish(again))[:2] == [8, 0]
