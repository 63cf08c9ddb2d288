"""Journal of a study: a file with every event, in the order in which they took effect."""

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
"""Version of the file format."""


class StudyJournal:
    """An append-only file of JSON lines that only one process at a time can open.

    Args:
        path: Path of the file. The file and its folder are created if they are missing.
        subject: Values that identify the study. They are the first line of the file. A file of
            another study is refused.

    Raises:
        ContractError: The file belongs to another study, has another format version, or is open in
            another process.
        IntegrityError: The first line is damaged.
        StorageError: The file cannot be read or written.
    """

    def __init__(self, path: Path, subject: Mapping[str, Any]) -> None:
        self._path = path
        self._lines: list[bytes] = []
        """Lines that earlier processes wrote."""
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
        """Lock the file, check or write its first line, and remove a partial last line."""
        path = self._path
        self.digest = hashlib.sha256()
        """Digest of the complete lines of the file."""
        self.size = 0
        """Size of the complete lines of the file [bytes]."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = path.read_bytes()
            content = content[: content.rfind(b"\n") + 1]
            os.ftruncate(self._file, len(content))  # removes the partial line of a killed process
        except BlockingIOError as error:
            raise ContractError(
                f"Another process runs the study of {path}.",
                fix="Wait for that process or end it, or use another journal.",
            ) from error
        except OSError as error:
            raise storage_error(path, error) from error
        header = {"version": _VERSION, **json.loads(json.dumps(subject, default=repr))}
        if not content:
            self.append(header)
            return
        lines = content.splitlines(keepends=True)
        _require_same_study(path, _parse_line(path, 1, lines[0]), header)
        self._count_content(content)
        self._lines = lines

    def iter_events(self, skip_bytes: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the events that earlier processes wrote, oldest first.

        Args:
            skip_bytes: Number of bytes at the start of the file to skip.

        Raises:
            IntegrityError: A line is damaged.
        """
        offset = 0
        for line_number, line in enumerate(self._lines, 1):
            if line_number > 1 and offset >= skip_bytes:  # the first line is the subject
                yield _parse_line(self._path, line_number, line)
            offset += len(line)

    def digest_of(self, size: int) -> str:
        """Return the digest of the first ``size`` bytes that earlier processes wrote.

        The result is "" if they wrote fewer bytes.
        """
        content = b"".join(self._lines)
        return hashlib.sha256(content[:size]).hexdigest() if size <= len(content) else ""

    def append(self, event: Mapping[str, Any], sync: bool = True) -> None:
        """Append an event as one line. If it cannot be written completely, nothing is written.

        Args:
            event: The event as plain JSON.
            sync: Whether to return only when the event is on disk. Without ``sync``, the event is
                on disk at the latest when a later call with ``sync`` returns.

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
        self._count_content(line)

    def _count_content(self, content: bytes) -> None:
        self.digest.update(content)
        self.size += len(content)

    def close(self) -> None:
        """Release the file for another process."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _parse_line(path: Path, line_number: int, line: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError) as error:
        raise IntegrityError(
            f"Line {line_number} of the journal {path} is not a JSON object.",
            cause="The file was edited, or a part of it was lost on disk.",
            fix="Restore the file from a backup, or remove it to start the study again.",
        ) from error


def _require_same_study(path: Path, stored: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    if stored.get("version") != _VERSION:
        raise ContractError(
            f"The journal must have version {_VERSION}, but {path} has version "
            f"{stored.get('version')!r}.",
            fix="Finish the study with the release that started it, or start it in another folder.",
        )
    differences = list(_describe_differences(stored, expected))
    if differences:
        raise ContractError(
            f"The journal {path} belongs to another study: {'; '.join(differences)}.",
            fix="Restore these settings to resume the study, or start the new study in another "
            "folder.",
        )


def _describe_differences(stored: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*stored, *expected}):
        if stored.get(name) != expected.get(name):
            yield f"{name} was {stored.get(name)!r} and is {expected.get(name)!r}"
