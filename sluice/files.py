"""Whole-or-nothing file writes: temporary name, flush, rename."""

import contextlib
import errno
import os
import uuid
from pathlib import Path

from sluice.errors import StorageError

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the operating system says when a disk, a quota or a file is full."""


def write_atomic(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` so that a reader sees all of it or none of it.

    Raises:
        StorageError: The folder is not writable or the disk is full; nothing is left behind.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not tempfile: its files are closed to other users, and a state folder may be shared.
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        temporary = None
        _sync_folder(path.parent)  # the new name must survive a power cut, as the content does
    except OSError as error:
        raise storage_error(path, error) from error
    finally:
        # Also on Ctrl-C: nothing half-written stays.
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()


def write_new(path: Path, content: bytes) -> bool:
    """Write ``content`` to ``path`` unless something is there; say whether it was written.

    Of several processes that write one path at once, exactly one is told True.

    Raises:
        StorageError: As ``write_atomic``.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    write_atomic(temporary, content)
    try:
        os.link(temporary, path)
        _sync_folder(path.parent)
    except FileExistsError:
        return False
    except OSError as error:
        raise storage_error(path, error) from error
    finally:
        temporary.unlink()
    return True


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def storage_error(path: Path, error: OSError) -> StorageError:
    """Say in our words why the operating system refused to write ``path``."""
    if error.errno in NO_ROOM:
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
    if error.errno == errno.ENOENT:  # its folder was made a moment ago: /proc takes no files
        return StorageError(
            f"Cannot write {path} ({error.strerror}).",
            cause="No file can be made there: it is no folder of a disk, or it was just removed.",
            fix="Name a folder on a disk, or point SLUICE_HOME at one.",
        )
    return StorageError(
        f"Cannot write {path} ({error.strerror or error}).",
        fix="Check the path and the disk, then run again.",
    )
