"""Whole-or-nothing file writes: temporary name, flush, rename."""

import contextlib
import errno
import os
import tempfile
from pathlib import Path

from sluice.errors import StorageError


def write_atomic(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` so that a reader sees all of it or none of it.

    Raises:
        StorageError: The folder is not writable or the disk is full; nothing is left behind.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise storage_error(path, error) from error
    finally:
        # Also on Ctrl-C: nothing half-written stays.
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def storage_error(path: Path, error: OSError) -> StorageError:
    """Say in our words why the operating system refused to write ``path``."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StorageError(
            f"No room left to write {path} ({error.strerror}).",
            fix="Free disk space or point SLUICE_HOME at a larger disk, then run again: "
            "finished work is kept.",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StorageError(
            f"Cannot write {path} ({error.strerror}).",
            fix="Make the folder writable, or point SLUICE_HOME at one that is.",
        )
    return StorageError(
        f"Cannot write {path} ({error.strerror or error}).",
        fix="Check the path and the disk, then run again.",
    )
