"""Files of a process in folders that others share, and what processes left that were killed.

Their names say whose they are, so that the next start can remove what nobody will.
"""

import contextlib
import os
import re
import shutil
import socket
import time
from pathlib import Path

_FOREIGN_S = 30 * 86_400.0
"""Of another machine nobody here knows what lives; no training takes a month."""


def own_prefix(kind: str) -> str:
    """Return how the names of this process's files of that kind begin."""
    return f".{kind}-{os.getpid()}-{socket.gethostname()}-"


def remove_leftovers(folder: Path, kind: str) -> None:
    """Remove the files and folders of that kind whose process is gone, or a month old.

    Several processes may do it at once.
    """
    for path in folder.glob(f".{kind}-*"):
        found = re.fullmatch(rf"\.{kind}-(\d+)-(.+)-[^-]+", path.name)
        if found is None or not _is_left(path, int(found[1]), found[2]):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def _is_left(path: Path, pid: int, host: str) -> bool:
    import psutil

    try:
        written = path.stat().st_mtime
        if host != socket.gethostname():
            return time.time() - written > _FOREIGN_S
        # A younger process has the number of the one that is gone; 2 s for coarse clocks.
        return psutil.Process(pid).create_time() > written + 2
    except psutil.NoSuchProcess:
        return True
    except (OSError, psutil.Error):
        return False  # removed meanwhile, or somebody else's
