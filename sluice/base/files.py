"""Whole-or-nothing writes, who may read what is made, and reads of regular files only."""

import contextlib
import errno
import os
import shutil
import stat
import uuid
from pathlib import Path

from sluice.base.errors import StorageError

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the operating system says when a disk, a quota or a file is full."""

NO_ROOM_LEFT = "No room left to write"
"""Begins every message about a full disk."""


OWNER_FOLDER, OWNER_FILE = 0o700, 0o600
"""Permissions of what nobody but its owner may read."""

_ANY_FILE = 0o666
"""As the umask of the user narrows it."""

_private_folders: set[Path] = set()


def keep_private(folder: Path) -> None:
    """Have ``make_folder`` create this folder for its owner alone, whatever the umask.

    A folder that is there keeps its permissions: somebody may share it on purpose.
    """
    _private_folders.add(folder)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless they are there.

    Raises:
        OSError: As ``Path.mkdir``.
    """
    if folder.is_dir():
        return
    for each in [*(f for f in reversed(folder.parents) if not f.exists()), folder]:
        if each in _private_folders and not each.exists():
            with contextlib.suppress(FileExistsError):  # another process was faster
                each.mkdir(mode=OWNER_FOLDER)  # private from its first moment on
                each.chmod(OWNER_FOLDER)  # also where the umask takes bits of the owner's
        else:
            each.mkdir(exist_ok=True)


def own_temporary_folder(base: Path) -> Path:
    """Return this user's folder in one that everybody may write to, closed to the others.

    Args:
        base: Such as /tmp.

    Raises:
        StorageError: Somebody else made a folder, or a link, of that name; or it cannot be made.
    """
    folder = base / f"sluice-{os.getuid()}"
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=OWNER_FOLDER)
        found = folder.lstat()
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if ours:
            folder.chmod(OWNER_FOLDER)
    except OSError as error:
        raise storage_error(folder, error) from error
    if not ours:
        raise StorageError(
            f"{folder} must be a folder of user {os.getuid()}, and it is not.",
            cause="Another user of this machine made it first.",
            fix="Remove it, or set TMPDIR to a folder of yours.",
        )
    return folder


def write_secret(path: Path, content: bytes) -> None:
    """Write as ``write_atomic`` a file that nobody but its owner may read, whatever the umask.

    Raises:
        StorageError: As ``write_atomic``.
    """
    _write(path, content, OWNER_FILE)


def write_atomic(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` so that a reader sees all of it or none of it.

    Raises:
        StorageError: The folder is not writable or the disk is full; nothing is left behind.
    """
    _write(path, content, _ANY_FILE)


def _write(path: Path, content: bytes, mode: int) -> None:
    temporary: Path | None = None
    try:
        make_folder(path.parent)
        # Not tempfile: its files are closed to other users, and a state folder may be shared.
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
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


def read_regular(path: Path, *, max_bytes: int | None = None) -> bytes:
    """Return the content of a regular file.

    Reading a pipe would wait for its writer, and a device may have no end, so neither is opened
    for reading.

    Args:
        path: The file; a link to one is followed.
        max_bytes: Largest size that is read; None reads any.

    Raises:
        FileNotFoundError: There is none.
        OSError: It cannot be read, is a pipe, a socket, a device or a folder, or is larger.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe opens at once
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is a pipe, a device or a folder, and no regular file")
        if max_bytes is not None and found.st_size > max_bytes:
            raise OSError(
                errno.EFBIG, f"it has {found.st_size:,} bytes, at most {max_bytes:,} are read"
            )
        with open(handle, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)


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


def disk_full_error(path: Path, *, reason: str) -> StorageError:
    """Say which disk is full, how much is free on it and what can be deleted.

    Args:
        path: What was to be written.
        reason: What the operating system or a database said.
    """
    return StorageError(
        f"{NO_ROOM_LEFT} {path} ({reason}; {free_bytes(path):,} bytes are free on its disk).",
        fix="Free disk space, or point SLUICE_HOME at a larger disk. In SLUICE_HOME, traces/ and "
        "reports/ can be deleted. Then run again: finished work is kept, and nothing is left "
        "half-written.",
    )


def free_bytes(path: Path) -> int:
    """Return the free space of the disk that a path is on, whether or not it exists [bytes]."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def storage_error(path: Path, error: OSError) -> StorageError:
    """Say in our words why the operating system refused to write ``path``."""
    if error.errno in NO_ROOM:
        return disk_full_error(path, reason=str(error.strerror))
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
