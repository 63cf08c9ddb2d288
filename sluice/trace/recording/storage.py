"""Files of one traced process: a history that grows slowly, and a ring buffer of recent detail.

``history.ndjson`` is append-only. The ring buffer consists of ``recent-0.ndjson`` and
``recent-1.ndjson``. Detail is appended to the active file until this file is full; then the other
file is emptied and becomes the active file. Every write consists of whole lines, so after a kill at
most one line at the end of each file is incomplete.
"""

import os
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from sluice.base.files import make_folder

HISTORY_FILE = "history.ndjson"
RECENT_FILES = ("recent-0.ndjson", "recent-1.ndjson")


def unique_folder(parent: Path, label: str) -> Path:
    """Return the path of a new, unique folder, such as ``20260102-030405-pid7-9f1c0a``.

    The folder is not created here. A process id alone is not unique. In a container, the training
    process may have the same id at every start, and several containers may share the parent folder.

    Args:
        parent: Folder that will contain the new folder.
        label: Part of the name between local time and random characters, such as 'pid7'.
    """
    # Do not use the random module: its state belongs to the traced program.
    return parent / f"{time.strftime('%Y%m%d-%H%M%S')}-{label}-{secrets.token_hex(3)}"


def workers_file(folder: Path) -> Path:
    """Return the file next to a trace folder to which DataLoader workers append whole lines."""
    return folder.with_name(f"{folder.name}.workers.ndjson")


class TraceFiles:
    """Writer of a trace folder; each folder has exactly one writer.

    Args:
        folder: Folder of the trace; it is created here and must not exist.
        recent_bytes: Maximum size of both ring files together [bytes].
        history_bytes: Size of the history beyond which only required lines are written [bytes].
    """

    def __init__(self, folder: Path, *, recent_bytes: int, history_bytes: int) -> None:
        make_folder(folder.parent)
        folder.mkdir()
        self.folder = folder
        self._max_ring_file_bytes = recent_bytes // len(RECENT_FILES)
        self._max_history_bytes = history_bytes
        self._history_handle = _open(folder / HISTORY_FILE)
        self._recent_handles = [_open(folder / name) for name in RECENT_FILES]
        self._active_index = 0
        """Index of the ring file to which lines are appended."""
        self._num_bytes = {"history": 0, "recent": 0}
        """Size of the history, and of the ring file to which lines are appended [bytes]."""
        self.is_full = False
        """Whether lines that are not required were dropped, because the history is full."""

    def write_history(self, lines: Iterable[bytes], *, is_required: bool) -> None:
        """Append lines to the history. If it is full, drop lines that are not required."""
        content = b"".join(lines)
        if not is_required and self._num_bytes["history"] + len(content) > self._max_history_bytes:
            self.is_full = True
            return
        self._num_bytes["history"] += len(content)
        _write(self._history_handle, content)

    def write_recent(self, lines: Iterable[bytes]) -> None:
        """Append lines to the ring buffer.

        If the active file has no space for the lines, the other file is emptied and becomes active.
        """
        content = b"".join(lines)
        if self._num_bytes["recent"] + len(content) > self._max_ring_file_bytes:
            self._active_index = 1 - self._active_index
            os.ftruncate(self._recent_handles[self._active_index], 0)
            self._num_bytes["recent"] = 0
        self._num_bytes["recent"] += len(content)
        _write(self._recent_handles[self._active_index], content)

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        handles = [self._history_handle, *self._recent_handles]
        self._history_handle, self._recent_handles = -1, [-1] * len(RECENT_FILES)
        for handle in handles:
            if handle >= 0:
                os.close(handle)


def encode_line(name: str, fields: Mapping[str, Any]) -> bytes:
    """Return a record as one JSON line; ``name`` is the kind of the record in the file."""
    return to_json({"record": name, **fields}, inf_nan_mode="constants") + b"\n"


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL, 0o666)


def _write(handle: int, content: bytes) -> None:
    """Append whole lines, or nothing if the disk has no space for all of them."""
    size = os.fstat(handle).st_size
    view = memoryview(content)
    try:
        while view:
            view = view[os.write(handle, view) :]
    except OSError:
        os.ftruncate(handle, size)
        raise
