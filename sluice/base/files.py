"""Writes files atomically, sets their permissions, and reads only regular files."""

import contextlib
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from sluice.base.errors import StorageError

DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers of the operating system for a full disk, an exceeded quota or file size limit."""

DISK_FULL_MESSAGE = "No room left to write"
"""Beginning of every message about a full disk."""


PRIVATE_FOLDER_MODE = 0o700
"""Permissions of a folder that only its owner may read and change."""

PRIVATE_FILE_MODE = 0o600
"""Permissions of a file that only its owner may read and write."""

_PUBLIC_FILE_MODE = 0o666
"""Permissions of a file that is not private, before the user's umask removes some of them."""

_private_folders: set[Path] = set()
"""Folders that ``make_folder`` creates with owner-only permissions in this process."""


def mark_private(folder: Path) -> None:
    """Make ``make_folder`` create this folder with owner-only permissions, whatever the umask.

    An existing folder keeps its permissions, because it may be shared deliberately.
    """
    _private_folders.add(folder)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents if they do not exist.

    Raises:
        OSError: As ``Path.mkdir``.
    """
    if folder.is_dir():
        return
    missing_parents = [parent for parent in reversed(folder.parents) if not parent.exists()]
    for path in [*missing_parents, folder]:
        if path in _private_folders and not path.exists():
            with contextlib.suppress(FileExistsError):  # another process created it first
                path.mkdir(mode=PRIVATE_FOLDER_MODE)  # other users can never read the folder
                path.chmod(PRIVATE_FOLDER_MODE)  # in case the umask removed the owner's permissions
        else:
            path.mkdir(exist_ok=True)


def make_user_temporary_folder(base: Path) -> Path:
    """Create this user's private folder inside a world-writable folder, and return its path.

    Args:
        base: World-writable folder, such as /tmp.

    Raises:
        StorageError: The path exists and is not a folder of this user, or the folder cannot be
            created.
    """
    folder = base / f"sluice-{os.getuid()}"
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=PRIVATE_FOLDER_MODE)
        folder_stat = folder.lstat()
        is_own = stat.S_ISDIR(folder_stat.st_mode) and folder_stat.st_uid == os.getuid()
        if is_own:
            folder.chmod(PRIVATE_FOLDER_MODE)
    except OSError as error:
        raise storage_error(folder, error) from error
    if not is_own:
        raise StorageError(
            f"{folder} must be a folder that user {os.getuid()} owns, and it is not.",
            cause="Another user of this machine created it first, or it is a file or a link.",
            fix=f"Remove {folder}, or set TMPDIR to a folder that you own.",
        )
    return folder


def write_secret(path: Path, content: bytes) -> None:
    """Write a file atomically with owner-only permissions, whatever the umask.

    Raises:
        StorageError: As ``write_atomic``.
    """
    _write(path, content, PRIVATE_FILE_MODE)


def write_atomic(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` atomically: a reader sees all of the content or none of it.

    Raises:
        StorageError: The folder is not writable or the disk is full. No partial file is left.
    """
    _write(path, content, _PUBLIC_FILE_MODE)


@contextlib.contextmanager
def stream_atomic(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file for writing; rename it to ``path`` if the block ends without an error.

    A reader sees all of the content or none of it. The open file is readable and seekable.

    Raises:
        StorageError: The folder is not writable or the disk is full. No partial file is left.
    """
    with _stream(path, _PUBLIC_FILE_MODE) as file:
        yield file


def _write(path: Path, content: bytes, mode: int) -> None:
    with _stream(path, mode) as file:
        file.write(content)


@contextlib.contextmanager
def _stream(path: Path, mode: int) -> Iterator[BinaryIO]:
    temporary_path: Path | None = None
    try:
        make_folder(path.parent)
        # Not created with the tempfile module, because other users could not read the file, even in
        # a shared folder.
        temporary_path = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        with open(
            temporary_path, "x+b", opener=lambda name, flags: os.open(name, flags, mode)
        ) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary_path, path)
        temporary_path = None
        # Also write the folder to the disk, so that the new name survives a power failure.
        _sync_folder(path.parent)
    except OSError as error:
        raise storage_error(path, error) from error
    finally:
        # Also runs on Ctrl-C, so that no partial file is left.
        if temporary_path is not None:
            with contextlib.suppress(FileNotFoundError):
                temporary_path.unlink()


def read_regular(path: Path, *, max_bytes: int | None = None) -> bytes:
    """Return the content of a regular file.

    Pipes and devices are rejected: a read from a pipe blocks until its writer closes the pipe, and
    a read from a device may never end.

    Args:
        path: The file; symbolic links are followed.
        max_bytes: Maximum size; None for any size.

    Raises:
        FileNotFoundError: The file does not exist.
        OSError: The file cannot be read, is a pipe, a socket, a device or a folder, or is too
            large.
    """
    # With O_NONBLOCK, the opening of a pipe does not wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        file_stat = os.fstat(descriptor)
        if not stat.S_ISREG(file_stat.st_mode):
            raise OSError(errno.EINVAL, "it is a pipe, a device or a folder, not a regular file")
        if max_bytes is not None and file_stat.st_size > max_bytes:
            raise OSError(
                errno.EFBIG, f"it has {file_stat.st_size:,} bytes, the maximum is {max_bytes:,}"
            )
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def write_new(path: Path, content: bytes) -> bool:
    """Write ``content`` to ``path`` if the path does not exist; return whether it was written.

    If several processes write the same path concurrently, exactly one of them returns True.

    Raises:
        StorageError: As ``write_atomic``.
    """
    temporary_path = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    write_atomic(temporary_path, content)
    try:
        os.link(temporary_path, path)
        _sync_folder(path.parent)
    except FileExistsError:
        return False
    except OSError as error:
        raise storage_error(path, error) from error
    finally:
        temporary_path.unlink()
    return True


def _sync_folder(folder: Path) -> None:
    """Write the names of a folder's files to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def disk_full_error(path: Path, *, reason: str) -> StorageError:
    """Return an error that names the full disk, its free space and what can be deleted.

    Args:
        path: File that could not be written.
        reason: Message of the operating system or the database.
    """
    return StorageError(
        f"{DISK_FULL_MESSAGE} {path} ({reason}; {free_bytes(path):,} bytes are free on its disk).",
        fix="Free disk space, or point SLUICE_HOME at a larger disk. In SLUICE_HOME, traces/ and "
        "reports/ can be deleted. Then run again: completed work is kept, and no partial files "
        "are left.",
    )


def free_bytes(path: Path) -> int:
    """Return the free space on the disk of a path, which need not exist [bytes]."""
    existing_path = path.absolute()
    while not existing_path.exists():
        existing_path = existing_path.parent
    return shutil.disk_usage(existing_path).free


def read_error(path: Path, error: OSError) -> StorageError:
    """Convert an error of the operating system while reading ``path`` to a ``StorageError``."""
    return StorageError(
        f"Cannot read {path} ({error.strerror or error}).",
        fix="Make the file readable for this user and check the disk, then run again.",
    )


def storage_error(path: Path, error: OSError) -> StorageError:
    """Convert an error of the operating system while writing ``path`` to a ``StorageError``."""
    if error.errno in DISK_FULL_ERRNOS:
        return disk_full_error(path, reason=str(error.strerror))
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StorageError(
            f"Cannot write {path} ({error.strerror}).",
            fix="Make the folder writable, or point SLUICE_HOME at a writable folder.",
        )
    if error.errno == errno.ENOENT:  # the folder was just created, but cannot contain files
        return StorageError(
            f"Cannot write {path} ({error.strerror}).",
            cause="The folder cannot contain files (such as /proc), or it was just removed.",
            fix="Use a folder on a disk, or point SLUICE_HOME at one.",
        )
    return StorageError(
        f"Cannot write {path} ({error.strerror or error}).",
        fix="Check the path and the disk, then run again.",
    )
