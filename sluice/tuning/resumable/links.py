"""What the scheduler and the searcher of one ``Tuner`` share, by the path of their journal.

Tune copies both, so neither can hold the other.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from ray.tune.search import Searcher

from sluice.base.errors import ContractError
from sluice.tuning.resumable import tune_trials
from sluice.tuning.resumable.driver import StudyDriver
from sluice.tuning.resumable.events import Event
from sluice.tuning.resumable.journal import StudyJournal
from sluice.tuning.resumable.study import Study

Listener = Callable[[Study, Event], None]

_links: dict[Path, "Link"] = {}
_listeners: dict[Path, list[Listener]] = {}


class Opened(Protocol):
    """A study with its journal."""

    study: Study
    journal: StudyJournal

    def driver(self, applied: Callable[[Event], None]) -> StudyDriver:
        """Return what runs it."""

    def spent(self, seconds: float) -> None:
        """Count time that went into decisions."""


class Link:
    """The study of one run of a ``Tuner``.

    Args:
        path: Path of the journal.
        open_study: Opens the journal and replays it into a copy of the searcher.
    """

    def __init__(self, path: Path, open_study: Callable[[Searcher | None], Opened]) -> None:
        self._path, self._open = path, open_study
        self._opened: Opened | None = None
        self._driver: StudyDriver | None = None
        self.controller: Any = None
        """Tune's controller, from its first call."""

    @contextmanager
    def decide(self, searcher: Searcher | None) -> Iterator[StudyDriver]:
        """Hand out the driver for a call of Tune; the first opens the journal and replays it."""
        if self._opened is None or self._driver is None:
            self._opened = self._open(searcher)
            self._driver = self._opened.driver(self._applied)
        begun = time.perf_counter()
        yield self._driver
        self._opened.spent(time.perf_counter() - begun)

    def study(self) -> Study | None:
        """Return the study; None before the first call of ``decide``."""
        return None if self._opened is None else self._opened.study

    def close(self) -> None:
        """Let another process write the journal; the study can still be asked."""
        if self._opened is not None:
            self._opened.journal.close()

    def _applied(self, event: Event) -> None:
        assert self._opened is not None
        study = self._opened.study
        for listener in tuple(_listeners.get(self._path, ())):
            listener(study, event)


def begin(path: Path, open_study: Callable[[Searcher | None], Opened]) -> None:
    """Begin a run of the study of a journal."""
    if path in _links:
        _links[path].close()
    _links[path] = Link(path, open_study)


def link_of(path: Path) -> Link | None:
    """Return the run of the study of a journal that began last."""
    return _links.get(path)


def study_of(journal: str | Path) -> Study:
    """Return the study of the ``Tuner`` that ran last in this process with a journal.

    It can be asked while the ``Tuner`` runs, as in a callback, and after ``fit``.

    Args:
        journal: Path of the journal.

    Raises:
        ContractError: No ``Tuner`` ran with it in this process.
    """
    link = link_of(Path(journal).absolute())
    study = None if link is None else link.study()
    if study is None:
        raise ContractError(
            f"No Tuner ran with the journal {journal} in this process.",
            fix="Call Tuner.fit with resumable(scheduler, journal=...) first.",
        )
    return study


def abandon(journal: str | Path) -> None:
    """Give back what a run of a ``Tuner`` holds that ``KeyboardInterrupt`` ended.

    Tune leaves its workers alive then, and the next run would wait for their resources for ever.

    Args:
        journal: Path of the journal.
    """
    link = link_of(Path(journal).absolute())
    if link is None:
        return
    link.close()
    if link.controller is not None:
        tune_trials.abandon(link.controller)


@contextmanager
def listening(journal: str | Path, listener: Listener) -> Iterator[None]:
    """Call ``listener(study, event)`` after every event of a study while the block runs.

    Events that are replayed are left out. An exception of the listener ends ``fit``.

    Args:
        journal: Path of the journal.
        listener: Is called in the thread of ``Tuner.fit``.
    """
    listeners = _listeners.setdefault(Path(journal).absolute(), [])
    listeners.append(listener)
    try:
        yield
    finally:
        listeners.remove(listener)
