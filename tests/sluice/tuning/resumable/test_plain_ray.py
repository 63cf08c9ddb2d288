"""A plain Ray Tune program is killed and run again: it takes the decisions of one that was not."""

import json
import os
import signal
import subprocess
import sys

import pytest

PROGRAM = [sys.executable, "-P", "-m", "tests.support.plain_tune"]


def start(scheduler, folder, workers):
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [*PROGRAM, scheduler, str(folder), str(workers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RAY_AIR_NEW_OUTPUT": "0"},
        start_new_session=True,
    )


def events(folder):
    path = folder / "journal.jsonl"
    if not path.exists():
        return []
    lines = [
        json.loads(line) for line in path.read_text().splitlines(keepends=True) if line[-1:] == "\n"
    ]
    return [{key: line[key] for key in line if key != "checkpoint"} for line in lines[1:]]


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheduler", ["asha", "pbt"])
def test_a_killed_program_run_again_decides_as_one_that_was_not(scheduler, tmp_path):
    whole = start(scheduler, tmp_path / "whole", 1)
    printed, _ = whole.communicate(timeout=400)
    assert json.loads(printed) == [8, 0]
    expected = events(tmp_path / "whole")

    folder, wanted = tmp_path / "killed", (len(expected) // 4, len(expected) // 2)
    for number in wanted:
        killed = start(scheduler, folder, 2)
        while len(events(folder)) < number:
            assert killed.poll() is None
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate()
    printed, _ = start(scheduler, folder, 2).communicate(timeout=400)

    assert json.loads(printed) == [8, 0]
    assert events(folder) == expected
    assert len(expected) > 30
