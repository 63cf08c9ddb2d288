"""The journal of a study: every event in the order in which it took effect."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sluice.base.errors import ContractError, IntegrityError
from sluice.base.files import storage_error

_VERSION = 2


class StudyJournal:
    """An append-only file of JSON lines, written by one process at a time.

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
        self._lines: list[bytes] = []
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
        self.digest = hashlib.sha256()
        """Of the whole lines of the file."""
        self.size = 0
        """Of the whole lines of the file [bytes]."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = path.read_bytes()
            content = content[: content.rfind(b"\n") + 1]
            os.ftruncate(self._file, len(content))  # a killed process began another line
        except BlockingIOError as error:
            raise ContractError(
                f"Another process runs the study of {path}.",
                fix="Wait for it or end it, or use another journal.",
            ) from error
        except OSError as error:
            raise storage_error(path, error) from error
        header = {"version": _VERSION, **json.loads(json.dumps(subject, default=repr))}
        if not content:
            self.append(header)
            return
        lines = content.splitlines(keepends=True)
        _require_same(path, _parsed(path, 1, lines[0]), header)
        self._count(content)
        self._lines = lines

    def restored(self, since: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the events that earlier processes wrote, oldest first.

        Args:
            since: Leave out what is in the first bytes of the file, so many.
        """
        at = 0
        for number, line in enumerate(self._lines, 1):
            if number > 1 and at >= since:
                yield _parsed(self._path, number, line)
            at += len(line)

    def digest_of(self, size: int) -> str:
        """Return the digest of the first bytes that earlier processes wrote; empty if too few."""
        content = b"".join(self._lines)
        return hashlib.sha256(content[:size]).hexdigest() if size <= len(content) else ""

    def append(self, event: Mapping[str, Any], sync: bool = True) -> None:
        """Write an event, as a whole or not at all.

        Args:
            event: What is plain JSON.
            sync: Return when it is on disk; an event after it brings it there as well.

        Raises:
            StorageError: The disk is full, or the file cannot be written.
        """
        line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if sync:
                os.fdatasync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self.size)
            raise storage_error(self._path, error) from error
        self._count(line)

    def _count(self, content: bytes) -> None:
        self.digest.update(content)
        self.size += len(content)

    def close(self) -> None:
        """Let another process write the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError) as error:
        raise IntegrityError(
            f"Line {number} of the journal {path} is no JSON object.",
            cause="The file was edited, or the disk lost a part of it.",
            fix="Restore the file from a backup, or remove it to start the study again.",
        ) from error


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
