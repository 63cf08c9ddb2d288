"""The files of one traced process: a history that grows slowly, and a ring of recent detail.

``history.ndjson`` is appended to. Of ``recent-0.ndjson`` and ``recent-1.ndjson`` one is appended to
until it is full, then the other is emptied and takes its place. Every write is whole lines, so a
kill leaves at most one torn line at the end of each.
"""

import os
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from sluice.base.files import make_folder

HISTORY = "history.ndjson"
RECENT = ("recent-0.ndjson", "recent-1.ndjson")


def unused_folder(parent: Path, label: str) -> Path:
    """Return a folder name that does not repeat, such as ``20260102-030405-pid7-9f1c0a``.

    A process id alone repeats: in a container the training process has the same one at every start,
    and several containers may share the parent. The folder is not made here.

    Args:
        parent: The folder that will contain it.
        label: What the name says between local time and random characters.
    """
    # Not the random module: its state belongs to the traced program.
    return parent / f"{time.strftime('%Y%m%d-%H%M%S')}-{label}-{secrets.token_hex(3)}"


def workers_file(folder: Path) -> Path:
    """Return the file beside a folder in which the workers of its loaders write whole lines."""
    return folder.with_name(f"{folder.name}.workers.ndjson")


class TraceFiles:
    """The one writer of a folder.

    Args:
        folder: Made here; it must not be there yet.
        recent_bytes: Both files of the ring together.
        history_bytes: From here on only lines that are ``needed`` are written.
    """

    def __init__(self, folder: Path, *, recent_bytes: int, history_bytes: int) -> None:
        make_folder(folder.parent)
        folder.mkdir()
        self.folder = folder
        self._most_recent = recent_bytes // len(RECENT)
        self._most_history = history_bytes
        self._history = _open(folder / HISTORY)
        self._recent = [_open(folder / name) for name in RECENT]
        self._turn = 0
        self._size = {"history": 0, "recent": 0}
        self.is_full = False

    def write_history(self, lines: Iterable[bytes], *, needed: bool) -> None:
        """Append lines, which are left out when the history is full and they are not needed."""
        content = b"".join(lines)
        if not needed and self._size["history"] + len(content) > self._most_history:
            self.is_full = True
            return
        self._size["history"] += len(content)
        _write(self._history, content)

    def write_recent(self, lines: Iterable[bytes]) -> None:
        """Append lines to the ring; the oldest ones fall out."""
        content = b"".join(lines)
        if self._size["recent"] + len(content) > self._most_recent:
            self._turn = 1 - self._turn
            os.ftruncate(self._recent[self._turn], 0)
            self._size["recent"] = 0
        self._size["recent"] += len(content)
        _write(self._recent[self._turn], content)

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        handles = [self._history, *self._recent]
        self._history, self._recent = -1, [-1] * len(RECENT)
        for handle in handles:
            if handle >= 0:
                os.close(handle)


def line_of(record: str, fields: Mapping[str, Any]) -> bytes:
    """Return one record as a line."""
    return to_json({"record": record, **fields}, inf_nan_mode="constants") + b"\n"


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL, 0o666)


def _write(handle: int, content: bytes) -> None:
    """Append whole lines, or nothing when the disk has no room for all of them."""
    size = os.fstat(handle).st_size
    view = memoryview(content)
    try:
        while view:
            view = view[os.write(handle, view) :]
    except OSError:
        os.ftruncate(handle, size)
        raise
