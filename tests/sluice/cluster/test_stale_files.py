"""Files of dead processes are removed, and files in use are kept."""

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
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("folder", [False, True])
def test_only_files_of_dead_processes_are_removed(folder, dead_pid, tmp_path):
    stale = [f".mark-{dead_pid}-{HOST}-a", f".mark-{dead_pid}-no-such-host-a_1"]
    kept = [
        f"{process_prefix('mark')}a",
        f".mark-{os.getppid()}-{HOST}-a",
        f".mark-{dead_pid}-no-such-host-b",
        f".ranks-{dead_pid}-{HOST}-a",
        f".mark-{HOST}-a",
    ]
    for name in [*stale, *kept]:
        path = tmp_path / name
        if folder:
            path.mkdir()
            (path / "note").touch()
        else:
            path.touch()
    old = time.time() - MONTH_S
    os.utime(tmp_path / stale[1], (old, old))

    remove_stale_files(tmp_path, "mark")

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_a_file_older_than_the_process_with_its_pid_is_removed(tmp_path):
    path = tmp_path / f"{process_prefix('mark')}a"
    path.touch()
    os.utime(path, (time.time() - MONTH_S,) * 2)

    remove_stale_files(tmp_path, "mark")

    assert not path.exists()
