"""Stores regression suites: rows as artifacts, and one immutable index file per version."""

import itertools
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from pydantic import AwareDatetime, Field, ValidationError

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import short
from sluice.base.errors import ContractError, GateBlocked, IntegrityError
from sluice.base.files import write_new
from sluice.base.pluralize import pluralize
from sluice.base.settings import Record, suggest_nearest
from sluice.evaluation.suites.suite import Suite, SuiteVersion

HARD_SUITE = "hard"
"""Name of the suite that is created automatically."""


class SuiteEntry(Record):
    """Index entry of one version of a suite."""

    name: str
    version: int = Field(ge=1)
    digest: str = Field(description="Digest of the suite (rows, reasons, origin).")
    artifact: str = Field(description="Artifact digest of the suite (JSON).")
    num_rows: int
    kind: str = Field(description="How the rows were selected.")
    added_at: AwareDatetime


class SuiteLibrary:
    """The suites of one pipeline.

    The file of a version is created once and never overwritten, so two processes cannot create the
    same version with different rows.

    Args:
        folder: Subfolder of ``Home.suites`` with the pipeline's name.
        store: Artifact store with the rows.
    """

    def __init__(self, folder: Path, store: ArtifactStore) -> None:
        self._folder = folder
        self._store = store

    def names(self) -> tuple[str, ...]:
        """Return the names of the suites, sorted."""
        return tuple(sorted({path.parent.name for path in self._folder.glob("*/[0-9]*.json")}))

    def entries(self, name: str) -> tuple[SuiteEntry, ...]:
        """Return all versions of one suite, oldest first; empty for an unknown suite.

        Raises:
            IntegrityError: An index file cannot be read.
        """
        entries = [self._read_entry(path) for path in (self._folder / name).glob("[0-9]*.json")]
        return tuple(sorted(entries, key=lambda entry: entry.version))

    def add(self, suite: Suite, *, at: datetime) -> SuiteEntry:
        """Store a new suite. Storing the same suite again has no effect.

        Raises:
            ContractError: A stored suite of this name has other rows, reasons or origin.
            StorageError: The folder is not writable.
        """
        newest_entries = self.entries(suite.name)[-1:]
        stored_entry = newest_entries[0] if newest_entries else self._write(suite, 1, at)
        if stored_entry.digest != suite.digest:
            raise ContractError(
                f"Suite '{suite.name}' already exists with other rows, reasons or origin: version "
                f"{stored_entry.version}, {pluralize(stored_entry.num_rows, 'row')}.",
                cause="A suite is immutable, so that results on it stay comparable.",
                fix="Choose another name, or revise the suite, which creates its next version.",
            )
        return stored_entry

    def revise(self, suite: Suite, *, at: datetime) -> SuiteEntry:
        """Store the next version of a suite, or the first version of a new suite.

        If rows, reasons and origin equal the newest version's, the newest version is returned.

        Raises:
            StorageError: The folder is not writable.
        """
        newest_entries = self.entries(suite.name)[-1:]
        # The newest version is tried first, because it may equal this suite. A number may also be
        # taken by another process that creates a version at the same time. In both cases, if the
        # stored version differs from this suite, the next number is tried.
        for version in itertools.count(newest_entries[0].version if newest_entries else 1):
            stored_entry = self._write(suite, version, at)
            if stored_entry.digest == suite.digest:
                return stored_entry
        raise AssertionError("unreachable: the counter is infinite")

    def load(self, name: str, version: int | None = None) -> SuiteVersion:
        """Return version number ``version`` of a suite, or its newest version for None.

        Raises:
            ContractError: The suite or version does not exist. The message lists the existing
                versions or suites.
            IntegrityError: The rows of the suite are missing or were modified.
        """
        entries = self.entries(name) if name in self.names() else ()
        if version is None:
            matches = entries[-1:]
        else:
            matches = tuple(entry for entry in entries if entry.version == version)
        if not matches:
            known_names = list(self.names())
            versions = ", ".join(str(entry.version) for entry in entries)
            choices = f"version {versions}" if entries else ", ".join(known_names) or "none"
            requested_name = f"'{name}'" + (f" version {version}" if version is not None else "")
            raise ContractError(
                f"Suite {requested_name} does not exist."
                f"{'' if entries else suggest_nearest(name, known_names)} Known: {choices}.",
                fix="Use an existing suite, or add one: sluice suites add --help",
            )
        entry = matches[0]
        suite = self._read_suite(entry)
        return SuiteVersion(suite=suite, version=entry.version, added_at=entry.added_at)

    def newest(self) -> tuple[SuiteVersion, ...]:
        """Return the newest version of every suite, by name.

        Raises:
            IntegrityError: A suite is missing or damaged. Damaged suites are not skipped silently.
        """
        return tuple(self.load(name) for name in self.names())

    def _write(self, suite: Suite, version: int, at: datetime) -> SuiteEntry:
        """Store the suite as this version unless the version exists; return the stored entry."""
        path = self._folder / suite.name / f"{version:06d}.json"
        if not path.exists():
            entry = SuiteEntry(
                name=suite.name,
                version=version,
                digest=suite.digest,
                artifact=self._store.put(suite.model_dump_json().encode()),
                num_rows=len(suite.rows),
                kind=suite.origin.kind,
                added_at=at,
            )
            if write_new(path, entry.model_dump_json(indent=1).encode()):
                return entry
        return self._read_entry(path)

    def _read_entry(self, path: Path) -> SuiteEntry:
        try:
            entry = SuiteEntry.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise _damaged_error(path, str(error).splitlines()[0]) from error
        if (path.parent.name, path.stem) != (entry.name, f"{entry.version:06d}"):
            raise _damaged_error(path, f"it contains {entry.name} version {entry.version}")
        return entry

    def _read_suite(self, entry: SuiteEntry) -> Suite:
        path = self._store.path(entry.artifact)
        try:
            suite = Suite.model_validate_json(self._store.get(entry.artifact))
        except ValidationError as error:
            raise _damaged_error(path, str(error).splitlines()[0]) from error
        if (suite.name, suite.digest) != (entry.name, entry.digest):
            raise _damaged_error(
                path,
                f"it contains suite '{suite.name}' {short(suite.digest)}, stored as '{entry.name}' "
                f"{short(entry.digest)}",
            )
        return suite


def require_guarded_suites(library: SuiteLibrary, guarded_suites: Sequence[str]) -> None:
    """Raise an error for a guard on a suite that does not exist.

    The hard suite counts as known, because the evaluation itself creates it.

    Args:
        library: Suites of the pipeline.
        guarded_suites: Names of the suites with a guard.

    Raises:
        GateBlocked: A guarded suite does not exist; the message lists the existing suites.
    """
    existing_names = library.names()
    known_names = sorted({HARD_SUITE, *existing_names})
    other_names = [name for name in existing_names if name != HARD_SUITE]
    for name in guarded_suites:
        if name not in known_names:
            raise GateBlocked(
                f"Suite '{name}' has a guard but does not exist."
                f"{suggest_nearest(name, known_names)} Suites in this home: "
                f"{', '.join(other_names) or 'only the hard suite'}.",
                cause="Without the suite its guard cannot pass. Suites are stored in a home, not "
                "in the registry.",
                fix="Add the suite (sluice suites add --help), or remove its guard from the "
                "pipeline's YAML.",
            )


def _damaged_error(path: Path, problem: str) -> IntegrityError:
    return IntegrityError(
        f"The stored suite {path} is invalid: {problem}.",
        cause="The file was modified or damaged after it was written.",
        fix="Restore it from a backup.",
    )
