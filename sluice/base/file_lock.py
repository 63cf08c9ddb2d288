"""Locks between processes of one machine. The system releases the locks of an ended process."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from sluice.base.files import make_folder, storage_error


@contextlib.contextmanager
def hold_lock(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold an exclusive lock for the duration of the block.

    Args:
        path: Lock file; created if it does not exist, and never removed.
        wait: Whether to wait for another process that holds the lock.

    Yields:
        Whether the lock is held; always True if ``wait`` is set.

    Raises:
        StorageError: The lock file cannot be created.
    """
    try:
        make_folder(path.parent)
        file = open(path, "ab")  # noqa: SIM115 - closed below, after the block
    except OSError as error:
        raise storage_error(path, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
