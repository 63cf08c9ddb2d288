"""The loop of a search: hand out segments, write down outcomes, let the search decide."""

import contextlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from sluice.tuning.accidents import reason_of
from sluice.tuning.journal import Journal
from sluice.tuning.records import Key, Outcome, Segment, Trial


class SegmentObjective(Protocol):
    """What a search minimises. It is pickled to workers, which must be able to import it."""

    def subject(self) -> Mapping[str, Any]:
        """Return all that determines the outcomes, by name, as plain JSON."""
        ...

    def run(self, segment: Segment, folder: Path, start: Path | None) -> Outcome:
        """Run a segment; the same segment has the same outcome wherever and however often.

        Args:
            segment: What to run.
            folder: For the checkpoints of this segment; those in it are of this segment.
            start: The folder of ``segment.start``.
        """
        ...


class Search(Protocol):
    """Decisions as a pure function of the outcomes told."""

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials so far, by id."""
        ...

    def ready(self) -> tuple[Segment, ...]:
        """Return the segments that may run now, the most urgent first; none at the end."""
        ...

    def needed(self) -> frozenset[Key]:
        """Return the ends whose checkpoints may still be read."""
        ...

    def tell(self, outcome: Outcome) -> None:
        """Take in an outcome."""
        ...


class Pool(Protocol):
    """Where segments run. Leaving its context ends what it started."""

    def free(self) -> bool:
        """Return whether it takes another segment now."""
        ...

    def give(self, segment: Segment) -> None:
        """Start a segment."""
        ...

    def next(self) -> Outcome | None:
        """Wait for an outcome; None when only the number of free places changed."""
        ...


Hear = Callable[[Outcome, tuple[Trial, ...]], None]
"""(outcome, all trials after it), for whoever watches."""


class ThisProcess:
    """Runs one segment after another, here."""

    def __init__(self, objective: SegmentObjective, folder: Path) -> None:
        self._objective, self._folder = objective, folder
        self._segment: Segment | None = None

    def free(self) -> bool:
        """Return whether it takes another segment now."""
        return self._segment is None

    def give(self, segment: Segment) -> None:
        """Take the segment; ``next`` runs it."""
        self._segment = segment

    def next(self) -> Outcome:
        """Run the segment."""
        assert self._segment is not None
        segment, self._segment = self._segment, None
        return answer(self._objective, segment, self._folder)


def answer(objective: SegmentObjective, segment: Segment, folder: Path) -> Outcome:
    """Run one segment in the folder of its search; a trial that cannot go on is an outcome.

    Raises:
        SluiceError: An accident stopped it, which says nothing of the trial.
    """
    start = None if segment.start is None else _folder(folder, segment.start)
    try:
        return objective.run(segment, _folder(folder, segment.key), start)
    except Exception as error:  # the edge of the worker: the user's code may raise anything
        reason = reason_of(error, segment.params)
    return Outcome(
        trial=segment.trial, until=segment.until, epochs=(), status="failed", reason=reason
    )


def drive(search: Search, pool: Pool, journal: Journal, folder: Path, hear: Hear) -> None:
    """Run ``search``, which was told all that is in the journal, to its end.

    Raises:
        StorageError: An outcome or a checkpoint cannot be written.
    """
    under_way: set[Key] = set()
    while waiting := search.ready():
        for segment in waiting:
            if segment.key not in under_way and pool.free():
                under_way.add(segment.key)
                pool.give(segment)
        arrived = pool.next()
        if arrived is None:
            continue
        under_way.discard(arrived.key)
        journal.append(arrived)
        search.tell(arrived)
        _tidy(folder, search.needed())
        hear(arrived, search.trials)


def _folder(folder: Path, key: Key) -> Path:
    trial, epoch = key
    return folder / "trials" / f"{trial:05d}-{epoch:06d}"


def _tidy(folder: Path, needed: frozenset[Key]) -> None:
    """Remove checkpoints that nothing goes on from; one left behind does no harm."""
    keep = {_folder(folder, key) for key in needed}
    with contextlib.suppress(OSError):
        for path in (folder / "trials").iterdir():
            if path not in keep:
                shutil.rmtree(path, ignore_errors=True)
