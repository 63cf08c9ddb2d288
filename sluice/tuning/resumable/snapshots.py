"""Snapshots of a study beside its journal, so that a long journal is not replayed from the start.

A snapshot is a cache: it contains the size and the digest of the prefix of the journal that it
covers. A snapshot that does not match is ignored, and the journal is replayed from its first line.
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

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FORMAT = 2


def write_snapshot(path: Path, study: Any, *, size: int, digest: str) -> bool:
    """Write a snapshot of a study; return False if it cannot be pickled or written.

    Args:
        path: Path of the snapshot.
        study: The study, with all lines of the journal applied.
        size: Size of those lines [bytes].
        digest: SHA-256 of those lines.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        content = cloudpickle.dumps(study)  # type: ignore[no-untyped-call]
        header = {
            **_environment(),
            "size": size,
            "digest": digest,
            "content": hashlib.sha256(content).hexdigest(),
        }
        with open(temporary, "wb", opener=_private) as file:
            file.write(json.dumps(header).encode() + b"\n" + content)
        os.replace(temporary, path)
    except Exception:  # a user object that cannot be pickled may raise anything
        with contextlib.suppress(OSError):
            temporary.unlink()
        return False
    return True


def read_header(path: Path) -> dict[str, Any]:
    """Return the header of a snapshot that this user wrote with the same packages; else {}."""
    try:
        if _may_be_foreign(path) or _may_be_foreign(path.parent):
            return {}
        with path.open("rb") as file:
            header = dict(json.loads(file.readline()))
    except (OSError, ValueError, TypeError):
        return {}
    same = {key: header.get(key) for key in _environment()} == _environment()
    return header if same else {}


def read_study(path: Path, header: dict[str, Any]) -> Any:
    """Return the study of a snapshot; None if it is damaged or cannot be unpickled."""
    try:
        _, content = path.read_bytes().split(b"\n", 1)
        if hashlib.sha256(content).hexdigest() != header["content"]:
            return None
        return cloudpickle.loads(content)
    except Exception:  # user classes may have changed; the journal is replayed instead
        return None


def _environment() -> dict[str, Any]:
    names = ("ray", "optuna", "numpy", "hyperopt", "nevergrad", "hpbandster", "ConfigSpace")
    found: dict[str, Any] = {"format": _FORMAT, "sluice": sluice.__version__}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return {**found, "python": platform.python_version()}


def _may_be_foreign(path: Path) -> bool:
    """Return whether another user owns or could write a path: loading a pickle runs code."""
    found = path.lstat()
    return found.st_uid != os.getuid() or bool(found.st_mode & _OTHERS_MAY_WRITE)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
