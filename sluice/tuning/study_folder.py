"""Reads and writes the files of a study besides the journal: its subject and its result."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sluice.base.dict_diff import format_differences
from sluice.base.errors import ContractError, IntegrityError
from sluice.base.files import make_folder, read_error, read_regular, storage_error, write_atomic
from sluice.tuning.records import SearchResult

JOURNAL = "journal.jsonl"
RESULTS = "tune"
"""Name of the folder of Ray Tune's results, inside the folder of a study."""
_SUBJECT_FILE, _RESULT_FILE = "subject.json", "result.json"
_MAX_LISTED_DIFFERENCES = 5
"""Maximum number of differences that an error message lists."""


def results_path(folder: Path, storage_path: str | None) -> str:
    """Return the folder or URL of Ray Tune's results of a study.

    Args:
        folder: Folder of the study on this machine.
        storage_path: Value of ``compute.storage_path``.
    """
    if storage_path is None:
        return str(folder / RESULTS)
    return f"{storage_path.partition('?')[0].rstrip('/')}/{folder.name}"


def is_unfinished(folder: Path) -> bool:
    """Return whether a folder contains a study that has started and has no result."""
    return (folder / JOURNAL).exists() and not (folder / _RESULT_FILE).exists()


class StudyFolder:
    """The folder of one study, which refuses a study with another subject.

    Args:
        path: Path of the folder, which is created if it is missing.
        subject: Everything that determines the decisions, by name, as plain JSON.

    Raises:
        ContractError: The folder contains a study with another subject; the message lists the
            differences.
        IntegrityError: A file in the folder is damaged.
        StorageError: The folder cannot be read or written.
    """

    def __init__(self, path: Path, subject: Mapping[str, Any]) -> None:
        self.path = path
        expected_subject = json.loads(json.dumps(subject))
        try:
            make_folder(path)
            if not (path / _SUBJECT_FILE).exists():
                write_atomic(path / _SUBJECT_FILE, json.dumps(expected_subject, indent=1).encode())
        except OSError as error:
            raise storage_error(path, error) from error
        differences = format_differences(self._read(_SUBJECT_FILE), expected_subject)
        if differences:
            raise ContractError(
                f"{path} belongs to a search with other settings: "
                f"{'; '.join(differences[:_MAX_LISTED_DIFFERENCES])}.",
                cause="Continuing would mix two searches.",
                fix="Restore the settings to resume, or remove the folder to start again.",
            )

    @property
    def journal(self) -> Path:
        """Path of the journal."""
        return self.path / JOURNAL

    def result(self) -> SearchResult | None:
        """Return the result of the study; None if the study has not finished."""
        if not (self.path / _RESULT_FILE).exists():
            return None
        try:
            return SearchResult.model_validate(self._read(_RESULT_FILE))
        except ValidationError as error:
            raise self._damaged_file_error(_RESULT_FILE, str(error.errors()[0]["msg"])) from error

    def save(self, result: SearchResult) -> None:
        """Write the result; afterwards the study counts as finished."""
        write_atomic(self.path / _RESULT_FILE, result.model_dump_json().encode())

    def _read(self, name: str) -> Any:
        try:
            return json.loads(read_regular(self.path / name))
        except OSError as error:
            raise read_error(self.path / name, error) from error
        except ValueError as error:
            raise self._damaged_file_error(name, str(error)) from error

    def _damaged_file_error(self, name: str, reason: str) -> IntegrityError:
        return IntegrityError(
            f"{self.path / name} cannot be read: {reason}.",
            cause="The file was changed or damaged after it was written, or was written by "
            "another version of Sluice.",
            fix=f"Remove {name} and run again: the journal in the same folder contains every "
            "decision. If that fails too, remove the folder to start again."
            if name == _RESULT_FILE
            else "Remove the folder to start again.",
        )
