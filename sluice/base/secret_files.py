"""Reads files that contain a secret, with checks of their size and permissions."""

import os
import stat
from pathlib import Path

from sluice.base.errors import SettingsError, StorageError

MAX_SECRET_BYTES = 2**20
"""Maximum size of a file with a secret [bytes]."""
_FORBIDDEN_PERMISSIONS = 0o077
"""Forbidden permissions: any permission of the group or of other users."""
_FORBIDDEN_MOUNT_PERMISSIONS = 0o027
"""Forbidden permissions of a file that root owns and another user reads. Orchestrators mount
secrets as files of root that the group can read."""


def read_secret_file(path: Path, *, what: str) -> bytes:
    """Return the content of a file that only its owner may read.

    If root owns the file and does not run this process, the group may also read the file, because
    orchestrators mount secrets with these permissions.

    Args:
        path: The file, or a link to it.
        what: Noun for the file in messages, such as 'token file'.

    Raises:
        StorageError: The file cannot be read, or is not a regular file.
        SettingsError: Other users have permissions on the file, or it is larger than 1 MiB.
    """
    try:
        # Without O_NONBLOCK, the opening of a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise _unreadable_error(path, what, error.strerror or str(error)) from None
    try:
        _require_private(os.fstat(descriptor), path, what)
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise _unreadable_error(path, what, error.strerror or str(error)) from None
    finally:
        os.close(descriptor)
    if len(content) > MAX_SECRET_BYTES:
        raise SettingsError(
            f"The {what} {path} is larger than the maximum of {MAX_SECRET_BYTES:,} bytes.",
            fix="Check the path of the file.",
        )
    return content


def _require_private(file_stat: os.stat_result, path: Path, what: str) -> None:
    if not stat.S_ISREG(file_stat.st_mode):
        raise _unreadable_error(path, what, "it is not a regular file")
    mode = stat.S_IMODE(file_stat.st_mode)
    is_mounted = file_stat.st_uid == 0 and os.geteuid() != 0
    if mode & (_FORBIDDEN_MOUNT_PERMISSIONS if is_mounted else _FORBIDDEN_PERMISSIONS):
        raise SettingsError(
            f"The {what} {path} must be readable only by its owner (mode 0600), but has mode "
            f"{mode:04o}.",
            cause="Other users of this machine can read or change the file.",
            fix=f"Run: chmod 600 {path} - and replace the secret if other users may have read it.",
        )


def _unreadable_error(path: Path, what: str, reason: str) -> StorageError:
    return StorageError(
        f"The {what} {path} cannot be read ({reason}).", fix="Use a file that this user can read."
    )
