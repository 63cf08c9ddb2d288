"""File locks: mutual exclusion, release by a killed process, and errors."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.base.errors import StorageError
from sluice.base.file_lock import hold_lock

PROGRAM = """
import sys, time
from pathlib import Path
from sluice.base.file_lock import hold_lock
with hold_lock(Path(sys.argv[1]), wait=True) as held:
    print(held, flush=True)
    time.sleep(600)
"""


def test_held_lock_cannot_be_acquired_again(tmp_path: Path) -> None:
    path = tmp_path / "folder" / ".lock"

    with hold_lock(path, wait=False) as first, hold_lock(path, wait=False) as second:
        assert (first, second) == (True, False)
    with hold_lock(path, wait=False) as third:
        assert third


@pytest.mark.slow
def test_killed_process_releases_its_lock(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    command = [sys.executable, "-c", PROGRAM, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        with hold_lock(path, wait=False) as held:
            assert not held
        os.kill(holder.pid, signal.SIGKILL)

    with hold_lock(path, wait=True) as held:
        assert held


def test_lock_below_a_file_raises_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with (
        pytest.raises(StorageError, match="file/lock"),
        hold_lock(tmp_path / "file/lock", wait=True),
    ):
        pass
