"""Where suites are kept: rows as artifacts, one small index file a version, nothing overwritten."""

import itertools
from datetime import datetime
from pathlib import Path

from pydantic import AwareDatetime, Field, ValidationError

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import short
from sluice.base.errors import ContractError, IntegrityError
from sluice.base.files import write_new
from sluice.base.pluralize import counted
from sluice.base.settings import Record, nearest
from sluice.evaluation.suites.suite import FiledSuite, Suite


class SuiteEntry(Record):
    """One line of the index."""

    name: str
    version: int = Field(ge=1)
    digest: str = Field(description="Of the suite: rows, reasons, origin.")
    artifact: str = Field(description="Artifact digest of the suite as JSON.")
    num_rows: int
    kind: str = Field(description="How its rows were chosen.")
    added_at: AwareDatetime


class SuiteLibrary:
    """The suites of one pipeline.

    A version is a file that is created once and never written again, so two processes cannot make
    the same version of different rows.

    Args:
        folder: ``Home.suites`` and the pipeline's name.
        store: Holds the rows.
    """

    def __init__(self, folder: Path, store: ArtifactStore) -> None:
        self._folder = folder
        self._store = store

    def names(self) -> tuple[str, ...]:
        """Return the names of the suites, sorted."""
        return tuple(sorted({path.parent.name for path in self._folder.glob("*/[0-9]*.json")}))

    def entries(self, name: str) -> tuple[SuiteEntry, ...]:
        """Return every version of one suite, oldest first; empty when there is none.

        Raises:
            IntegrityError: A file of the index cannot be read.
        """
        found = [self._entry(path) for path in (self._folder / name).glob("[0-9]*.json")]
        return tuple(sorted(found, key=lambda entry: entry.version))

    def add(self, suite: Suite, *, at: datetime) -> SuiteEntry:
        """File a new suite; filing the same again changes nothing.

        Raises:
            ContractError: Other rows are filed under this name.
            StorageError: The folder cannot be written.
        """
        newest = self.entries(suite.name)[-1:]
        there = newest[0] if newest else self._write(suite, 1, at)
        if there.digest != suite.digest:
            raise ContractError(
                f"There is a suite '{suite.name}' with other rows, reasons or origin: version "
                f"{there.version}, {counted(there.num_rows, 'row')}.",
                cause="A suite never changes, so that results on it stay comparable.",
                fix="Choose another name, or revise it, which makes its next version.",
            )
        return there

    def revise(self, suite: Suite, *, at: datetime) -> SuiteEntry:
        """File the next version of a suite, its first when it is new.

        The same rows, reasons and origin as the newest version are that version.

        Raises:
            StorageError: The folder cannot be written.
        """
        newest = self.entries(suite.name)[-1:]
        # Another process may take a number between our look and our write.
        for version in itertools.count(newest[0].version if newest else 1):
            there = self._write(suite, version, at)
            if there.digest == suite.digest:
                return there
        raise AssertionError("counting does not end")

    def load(self, name: str, version: int | None = None) -> FiledSuite:
        """Return one version of a suite, the newest when None.

        Raises:
            ContractError: There is no such suite or version; the known ones are named.
            IntegrityError: Its rows are missing, or not those that were filed.
        """
        entries = self.entries(name) if name in self.names() else ()
        wanted = [e for e in entries[-1:] if version is None] or [
            e for e in entries if e.version == version
        ]
        if not wanted:
            known = list(self.names())
            there = f"versions 1 to {len(entries)}" if entries else ", ".join(known) or "none"
            asked = f"'{name}'" + (f" version {version}" if version is not None else "")
            raise ContractError(
                f"There is no suite {asked}.{'' if entries else nearest(name, known)} "
                f"Known: {there}.",
                fix="Name one that there is, or add it: sluice suites add --help",
            )
        entry = wanted[0]
        suite = self._suite(entry)
        return FiledSuite(suite=suite, version=entry.version, added_at=entry.added_at)

    def newest(self) -> tuple[FiledSuite, ...]:
        """Return the newest version of every suite, by name.

        Raises:
            IntegrityError: A suite is missing or damaged: it must not be skipped in silence.
        """
        return tuple(self.load(name) for name in self.names())

    def _write(self, suite: Suite, version: int, at: datetime) -> SuiteEntry:
        """File the suite under this number unless it is taken; return what is there."""
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
        return self._entry(path)

    def _entry(self, path: Path) -> SuiteEntry:
        try:
            entry = SuiteEntry.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise _damaged(path, str(error).splitlines()[0]) from error
        if (path.parent.name, path.stem) != (entry.name, f"{entry.version:06d}"):
            raise _damaged(path, f"it says it is {entry.name} version {entry.version}")
        return entry

    def _suite(self, entry: SuiteEntry) -> Suite:
        place = self._store.path(entry.artifact)
        try:
            suite = Suite.model_validate_json(self._store.get(entry.artifact))
        except ValidationError as error:
            raise _damaged(place, str(error).splitlines()[0]) from error
        if (suite.name, suite.digest) != (entry.name, entry.digest):
            raise _damaged(
                place,
                f"it is suite '{suite.name}' {short(suite.digest)}, filed as '{entry.name}' "
                f"{short(entry.digest)}",
            )
        return suite


def _damaged(path: Path, what: str) -> IntegrityError:
    return IntegrityError(
        f"A filed suite must read as it was written, and {path} does not: {what}.",
        cause="The file was changed or damaged after it was written.",
        fix="Restore it from a backup.",
    )
