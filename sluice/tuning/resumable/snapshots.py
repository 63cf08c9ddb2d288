"""Writes and reads snapshots of a study, which shorten the replay of a long journal.

A snapshot contains the size and the digest of the part of the journal that the snapshot covers. If
size and digest do not match the journal, the snapshot is ignored, and the whole journal is
replayed.
"""

import contextlib
import hashlib
import json
import os
import platform
import stat
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ray import cloudpickle

import sluice

_OTHERS_WRITE_BITS = stat.S_IWGRP | stat.S_IWOTH
"""Permission bits with which users other than the owner may write a file."""
_FORMAT = 5
"""Version of the snapshot format."""


def write_snapshot(path: Path, study: Any, *, size: int, digest: str) -> bool:
    """Write a snapshot of a study; return False if it cannot be pickled or written.

    Args:
        path: Path of the snapshot.
        study: The study, after all current lines of the journal were applied.
        size: Current size of the journal [bytes].
        digest: SHA-256 of the journal's current content.
    """
    temporary_path = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        content = cloudpickle.dumps(study)  # type: ignore[no-untyped-call]
        header = {
            **_current_versions(),
            "size": size,
            "digest": digest,
            "content": hashlib.sha256(content).hexdigest(),
        }
        with open(temporary_path, "wb", opener=_open_private) as file:
            file.write(json.dumps(header).encode() + b"\n" + content)
        os.replace(temporary_path, path)
    except Exception:  # a user object that cannot be pickled may raise anything
        with contextlib.suppress(OSError):
            temporary_path.unlink()
        return False
    return True


def read_header(path: Path) -> dict[str, Any]:
    """Return the header of a snapshot, or {} if the snapshot must not be loaded.

    A snapshot must not be loaded in these cases:

    - another user may have written it;
    - its header cannot be read;
    - the snapshot format or the version of a package has changed since it was written.
    """
    try:
        if _may_be_foreign(path) or _may_be_foreign(path.parent):
            return {}
        with path.open("rb") as file:
            header = dict(json.loads(file.readline()))
    except (OSError, ValueError, TypeError):
        return {}
    versions = _current_versions()
    has_current_versions = {key: header.get(key) for key in versions} == versions
    return header if has_current_versions else {}


def read_study(path: Path, header: dict[str, Any]) -> Any:
    """Return the study of a snapshot; None if it is damaged or cannot be unpickled."""
    try:
        _, content = path.read_bytes().split(b"\n", 1)
        if hashlib.sha256(content).hexdigest() != header["content"]:
            return None
        return cloudpickle.loads(content)
    except Exception:  # user classes may have changed; the journal is replayed instead
        return None


def _current_versions() -> dict[str, Any]:
    packages = ("ray", "optuna", "numpy", "hyperopt", "nevergrad", "hpbandster", "ConfigSpace")
    versions: dict[str, Any] = {"format": _FORMAT, "sluice": sluice.__version__}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {**versions, "python": platform.python_version()}


def _may_be_foreign(path: Path) -> bool:
    """Return whether another user owns or can write a path.

    A snapshot at such a path must not be loaded, because loading a pickle runs code.
    """
    file_status = path.lstat()
    return file_status.st_uid != os.getuid() or bool(file_status.st_mode & _OTHERS_WRITE_BITS)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
