"""The journal of a study: every event in the order in which it took effect."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sluice.errors import ContractError, IntegrityError
from sluice.files import storage_error

_VERSION = 1


class StudyJournal:
    """An append-only file of JSON lines; each is on disk before ``append`` returns.

    Args:
        path: The file; created with its folder.
        subject: What the study is. A file of another study is refused.

    Raises:
        ContractError: The file belongs to another study or another version of the format, or
            another process writes it.
        IntegrityError: A line before the last one is damaged.
        StorageError: The file cannot be read or written.
    """

    def __init__(self, path: Path, subject: Mapping[str, Any]) -> None:
        self._path = path
        self.restored: list[dict[str, Any]] = []
        """Events that earlier processes wrote, oldest first."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise storage_error(path, error) from error
        try:
            self._open(subject)
        except BaseException:
            self.close()
            raise

    def _open(self, subject: Mapping[str, Any]) -> None:
        path = self._path
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lines, end = _whole_lines(path.read_bytes())
            os.ftruncate(self._file, end)  # the rest of a line that a killed process began
        except BlockingIOError as error:
            raise ContractError(
                f"Another process runs the study of {path}.",
                fix="Wait for it or end it, or use another journal.",
            ) from error
        except OSError as error:
            raise storage_error(path, error) from error
        header = {"version": _VERSION, **json.loads(json.dumps(subject, default=repr))}
        if not lines:
            self.append(header)
            return
        self.restored = [_parsed(path, number, line) for number, line in enumerate(lines, 1)]
        _require_same(path, self.restored.pop(0), header)

    def append(self, event: Mapping[str, Any]) -> None:
        """Write an event; it is on disk afterwards.

        Raises:
            StorageError: The disk is full, or the file cannot be written.
        """
        line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
        try:
            os.write(self._file, line)
            os.fdatasync(self._file)
        except OSError as error:
            raise storage_error(self._path, error) from error

    def close(self) -> None:
        """Let another process write the file."""
        os.close(self._file)


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise IntegrityError(
            f"Line {number} of the journal {path} is no JSON.",
            cause="The file was edited, or the disk lost a part of it.",
            fix="Restore the file from a backup, or remove it to start the study again.",
        ) from error
    return dict(found)


def _whole_lines(content: bytes) -> tuple[list[bytes], int]:
    end = content.rfind(b"\n") + 1
    return content[:end].splitlines(), end


def _require_same(path: Path, found: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    if found.get("version") != _VERSION:
        raise ContractError(
            f"A journal of version {_VERSION} is required, {path} has version "
            f"{found.get('version')!r}.",
            fix="Finish the study with the release that began it, or start it in another folder.",
        )
    differing = list(_differing(found, asked))
    if differing:
        raise ContractError(
            f"The journal {path} belongs to another study: {'; '.join(differing)}.",
            fix="Use the settings of the journal to go on with it, or another folder for another "
            "study.",
        )


def _differing(found: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted({*found, *asked}):
        if found.get(key) != asked.get(key):
            yield f"{key} was {found.get(key)!r} and is {asked.get(key)!r}"
