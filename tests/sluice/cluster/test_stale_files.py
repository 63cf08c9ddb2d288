"""What a killed process left is removed, and nothing that somebody uses."""

import os
import socket
import subprocess
import sys
import time

import pytest

from sluice.cluster.stale_files import process_prefix, remove_stale_files

HOST = socket.gethostname()
MONTH_S = 31 * 86_400


@pytest.fixture(scope="module")
def gone() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("folder", [False, True])
def test_of_what_processes_left_only_that_of_the_dead_is_removed(folder, gone, tmp_path):
    left = [f".mark-{gone}-{HOST}-a", f".mark-{gone}-no-such-host-a_1"]
    kept = [
        f"{process_prefix('mark')}a",
        f".mark-{os.getppid()}-{HOST}-a",
        f".mark-{gone}-no-such-host-b",
        f".ranks-{gone}-{HOST}-a",
        f".mark-{HOST}-a",
    ]
    for name in [*left, *kept]:
        path = tmp_path / name
        if folder:
            path.mkdir()
            (path / "note").touch()
        else:
            path.touch()
    old = time.time() - MONTH_S
    os.utime(tmp_path / left[1], (old, old))

    remove_stale_files(tmp_path, "mark")

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_a_younger_process_with_the_same_number_is_another_one(tmp_path):
    path = tmp_path / f"{process_prefix('mark')}a"
    path.touch()
    os.utime(path, (time.time() - MONTH_S,) * 2)

    remove_stale_files(tmp_path, "mark")

    assert not path.exists()
