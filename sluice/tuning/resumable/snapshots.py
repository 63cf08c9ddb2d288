"""Copies of a study beside its journal, so that a long one need not be replayed from its start.

A copy is a cache: it names the prefix of the journal that it stands for, with the digest. Whatever
does not match is passed over, and the journal is replayed from its first line.
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
_FORMAT = 1


def write_snapshot(path: Path, study: Any, *, size: int, digest: str) -> bool:
    """Write a copy of a study; return False where it cannot be copied or written.

    Args:
        path: File of the copy.
        study: The study, with all lines of the journal applied.
        size: Size of those lines [bytes].
        digest: SHA-256 of those lines.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        content = cloudpickle.dumps(study)  # type: ignore[no-untyped-call]
        header = {
            **_circumstances(),
            "size": size,
            "digest": digest,
            "content": hashlib.sha256(content).hexdigest(),
        }
        with open(temporary, "wb", opener=_private) as file:
            file.write(json.dumps(header).encode() + b"\n" + content)
        os.replace(temporary, path)
    except Exception:  # an object of the user that refuses to be copied may raise anything
        with contextlib.suppress(OSError):
            temporary.unlink()
        return False
    return True


def read_header(path: Path) -> dict[str, Any]:
    """Return the header of a copy that this user wrote with these packages; else nothing."""
    try:
        if _may_be_of_others(path) or _may_be_of_others(path.parent):
            return {}
        with path.open("rb") as file:
            header = dict(json.loads(file.readline()))
    except (OSError, ValueError, TypeError):
        return {}
    same = {key: header.get(key) for key in _circumstances()} == _circumstances()
    return header if same else {}


def read_study(path: Path, header: dict[str, Any]) -> Any:
    """Return the study of a copy; None where it is damaged or cannot be read."""
    try:
        _, content = path.read_bytes().split(b"\n", 1)
        if hashlib.sha256(content).hexdigest() != header["content"]:
            return None
        return cloudpickle.loads(content)
    except Exception:  # classes of the user may have changed in any way; the journal is left
        return None


def _circumstances() -> dict[str, Any]:
    names = ("ray", "optuna", "numpy", "hyperopt", "nevergrad", "hpbandster", "ConfigSpace")
    found: dict[str, Any] = {"format": _FORMAT, "sluice": sluice.__version__}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return {**found, "python": platform.python_version()}


def _may_be_of_others(path: Path) -> bool:
    """Return whether another user wrote a path or could write it: a pickle runs code."""
    found = path.lstat()
    return found.st_uid != os.getuid() or bool(found.st_mode & _OTHERS_MAY_WRITE)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
