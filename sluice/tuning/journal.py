"""The journal of a search: every outcome, on disk before anything is decided on it.

One line an outcome, behind the first 16 digits of the line's SHA-256. The decisions of a search
follow from its outcomes alone, so the journal is all the state there is: a driver killed at any
moment reads it and goes on as one that was never killed. A last line that was torn by the kill is
cut off; that segment runs again and ends with the same bits.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sluice.differences import differences
from sluice.digests import digest_bytes
from sluice.errors import ContractError, IntegrityError
from sluice.files import make_folder, storage_error, write_atomic
from sluice.tuning.records import Outcome

_NAME = "journal.ndjson"


class Journal:
    """The outcomes of one search, in the order in which they arrived."""

    def __init__(self, path: Path, outcomes: tuple[Outcome, ...]) -> None:
        self.path = path
        self.restored = outcomes
        """What was there when it was opened."""

    def append(self, outcome: Outcome) -> None:
        """Add an outcome; it is on disk when this returns.

        Raises:
            StorageError: It cannot be written; what was there before is kept.
        """
        try:
            with self.path.open("ab") as file:
                file.write(_line(outcome.model_dump_json()))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise storage_error(self.path, error) from error


@contextlib.contextmanager
def open_journal(folder: Path, *, subject: Mapping[str, Any]) -> Iterator[Journal]:
    """Open the journal of the search in ``folder``, or begin it.

    Args:
        folder: Of this search alone.
        subject: What determines the decisions, by name, as plain JSON.

    Raises:
        ContractError: The search there has another subject (the differing names are listed), or
            another process is at work on it.
        IntegrityError: A line before the last is damaged.
        StorageError: The folder cannot be read or written.
    """
    path = folder / _NAME
    try:
        make_folder(folder)
        lock = (folder / "lock").open("ab")
    except OSError as error:
        raise storage_error(folder, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ContractError(
                f"The search in {folder} is under way in another process.",
                fix="Wait for it, or stop it and start again: nothing is lost.",
            ) from None
        plain = json.loads(json.dumps(subject))
        if not path.exists():
            write_atomic(path, _line(json.dumps({"subject": plain})))
        lines = _sound_lines(path)
        _require_same(path, json.loads(lines[0])["subject"], plain)
        yield Journal(path, tuple(_outcome(path, line) for line in lines[1:]))


def _line(text: str) -> bytes:
    content = text.encode()
    return digest_bytes(content)[:16].encode() + b" " + content + b"\n"


def _sound_lines(path: Path) -> list[bytes]:
    try:
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            os.truncate(path, len(whole))  # the next line must not be glued to a torn one
    except OSError as error:
        raise storage_error(path, error) from error
    lines = []
    for number, line in enumerate(whole.splitlines(), start=1):
        digest, _, text = line.partition(b" ")
        if digest_bytes(text)[:16].encode() != digest:
            raise _damaged(path, number)
        lines.append(text)
    if not lines:
        raise _damaged(path, 1)
    return lines


def _outcome(path: Path, line: bytes) -> Outcome:
    try:
        return Outcome.model_validate_json(line)
    except ValidationError as error:
        raise IntegrityError(
            f"{path} holds a line that is no outcome: {error.errors()[0]['msg']}.",
            cause="Another version of the program wrote it.",
            fix="Remove the folder to start the search afresh.",
        ) from None


def _damaged(path: Path, number: int) -> IntegrityError:
    return IntegrityError(
        f"Line {number} of {path} does not match its digest.",
        cause="The file was changed or damaged after it was written.",
        fix="Restore it from a backup, or remove the folder to start the search afresh.",
    )


def _require_same(path: Path, written: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    differing = differences(written, wanted)
    if differing:
        raise ContractError(
            f"{path} belongs to a search with other settings: {'; '.join(differing[:5])}.",
            cause="Going on would mix two searches.",
            fix="Restore the settings to resume, or remove the folder to start afresh.",
        )
