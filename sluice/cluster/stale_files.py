"""Names temporary files in shared folders, and removes the files of killed processes.

The name of a file contains the id and the host of its process, so that a later process can
determine whether the file is stale.
"""

import contextlib
import os
import re
import shutil
import socket
import time
from pathlib import Path

_MAX_AGE_OTHER_HOST_S = 30 * 86_400.0
"""Age at which files of another host are removed [s]. It cannot be checked whether the processes of
another host have ended, but no training takes a month."""


_CLOCK_TOLERANCE_S = 2
"""Tolerance for coarse clocks when the start time of a process is compared with the time of a file
[s]."""


def process_prefix(kind: str) -> str:
    """Return the prefix for names of temporary files of this process; ``kind`` is their purpose."""
    return f".{kind}-{os.getpid()}-{socket.gethostname()}-"


def remove_stale_files(folder: Path, kind: str) -> None:
    """Remove the files and folders of one kind whose process has ended.

    Files of another host are removed after a month. Several processes may call this function at the
    same time.
    """
    for path in folder.glob(f".{kind}-*"):
        match = re.fullmatch(rf"\.{kind}-(\d+)-(.+)-[^-]+", path.name)
        if match is None or not _is_stale(path, int(match[1]), match[2]):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def _is_stale(path: Path, pid: int, host: str) -> bool:
    import psutil

    try:
        written_at = path.stat().st_mtime
        if host != socket.gethostname():
            return time.time() - written_at > _MAX_AGE_OTHER_HOST_S
        # If the process started after the file was written, another process now has the id.
        return psutil.Process(pid).create_time() > written_at + _CLOCK_TOLERANCE_S
    except psutil.NoSuchProcess:
        return True
    except (OSError, psutil.Error):
        return False  # another process has removed the file, or another user owns the process
