"""Per-process temporary files in shared folders, and removal of those left by killed processes.

File names contain the process id and the host, so that the next start can remove stale files.
"""

import contextlib
import os
import re
import shutil
import socket
import time
from pathlib import Path

_MAX_AGE_OTHER_HOST_S = 30 * 86_400.0
"""Age after which files of another host are removed: its processes cannot be checked from here, and
no training takes a month."""


def process_prefix(kind: str) -> str:
    """Return the prefix of the names of this process's files of one kind."""
    return f".{kind}-{os.getpid()}-{socket.gethostname()}-"


def remove_stale_files(folder: Path, kind: str) -> None:
    """Remove files and folders of one kind whose process has ended, or which are a month old.

    Safe to call from several processes at the same time.
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
        written = path.stat().st_mtime
        if host != socket.gethostname():
            return time.time() - written > _MAX_AGE_OTHER_HOST_S
        # A process that started after the file was written has reused the id; 2 s for coarse
        # clocks.
        return psutil.Process(pid).create_time() > written + 2
    except psutil.NoSuchProcess:
        return True
    except (OSError, psutil.Error):
        return False  # removed by another process, or owned by another user
