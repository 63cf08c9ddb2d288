"""Registers the study that the scheduler and the searcher of one ``Tuner`` share, by journal path.

Tune copies the scheduler and the searcher, so they cannot share a study object. Therefore they find
the latest run of the study in a module-level variable.
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
from sluice.tuning.resumable.events import StudyEvent
from sluice.tuning.resumable.journal import StudyJournal
from sluice.tuning.resumable.study import Study

Listener = Callable[[Study, StudyEvent], None]
"""Function that is called with the study and an event after the event was applied."""

_runs: dict[Path, "TunerRun"] = {}
"""Latest run of each study, by absolute path of the journal."""

_listeners: dict[Path, list[Listener]] = {}
"""Listeners of each study, by absolute path of the journal."""


class StudyHandle(Protocol):
    """Interface of a study with its open journal; see ``OpenStudy``."""

    study: Study
    journal: StudyJournal

    def driver(self, on_applied: Callable[[StudyEvent], None]) -> StudyDriver:
        """Return the driver of the study."""

    def add_decision_time(self, seconds: float) -> None:
        """Add time that was spent on decisions."""


class TunerRun:
    """One run of a ``Tuner``, with the study that it opens.

    Args:
        path: Path of the journal.
        open_study: Function that gets the searcher, opens the journal, and replays it into copies
            of the scheduler and the searcher.
    """

    def __init__(self, path: Path, open_study: Callable[[Searcher | None], StudyHandle]) -> None:
        self._path, self._open_study = path, open_study
        self._handle: StudyHandle | None = None
        self._driver: StudyDriver | None = None
        self.controller: Any = None
        """Tune's controller; None before its first call of the scheduler."""

    @contextmanager
    def driver(self, searcher: Searcher | None) -> Iterator[StudyDriver]:
        """Yield the driver for a call by Tune. The first call opens and replays the journal."""
        if self._handle is None or self._driver is None:
            self._handle = self._open_study(searcher)
            self._driver = self._handle.driver(self._on_applied)
        started = time.perf_counter()
        yield self._driver
        self._handle.add_decision_time(time.perf_counter() - started)

    def study(self) -> Study | None:
        """Return the study; None before the first call by Tune."""
        return None if self._handle is None else self._handle.study

    def close(self) -> None:
        """Release the journal for another process; the study can still be queried."""
        if self._handle is not None:
            self._handle.journal.close()

    def _on_applied(self, event: StudyEvent) -> None:
        assert self._handle is not None
        study = self._handle.study
        for listener in tuple(_listeners.get(self._path, ())):
            listener(study, event)


def begin_run(path: Path, open_study: Callable[[Searcher | None], StudyHandle]) -> None:
    """Register a new run for a journal, and close the previous run of that journal."""
    if path in _runs:
        _runs[path].close()
    _runs[path] = TunerRun(path, open_study)


def latest_run(path: Path) -> TunerRun | None:
    """Return the latest run for a journal; None if there was no run in this process."""
    return _runs.get(path)


def get_study(journal: str | Path) -> Study:
    """Return the study of the latest ``Tuner`` in this process that used the given journal.

    The study can be queried while the ``Tuner`` runs, for example in a callback, and after ``fit``.

    Args:
        journal: Path of the journal.

    Raises:
        ContractError: No ``Tuner`` ran with the journal in this process.
    """
    run = latest_run(Path(journal).absolute())
    study = None if run is None else run.study()
    if study is None:
        raise ContractError(
            f"No Tuner ran with the journal {journal} in this process.",
            fix="Call Tuner.fit with resumable(scheduler, journal=...) first.",
        )
    return study


def release_workers(journal: str | Path) -> None:
    """Release the resources of a ``Tuner`` run that ``KeyboardInterrupt`` ended.

    After a ``KeyboardInterrupt``, Tune keeps its workers alive. The next run would wait forever for
    their resources.

    Args:
        journal: Path of the journal.
    """
    run = latest_run(Path(journal).absolute())
    if run is None:
        return
    run.close()
    if run.controller is not None:
        tune_trials.clean_up(run.controller)


@contextmanager
def listening(journal: str | Path, listener: Listener) -> Iterator[None]:
    """Call ``listener(study, event)`` after every new event of a study inside the context.

    The listener is not called for replayed events. An exception of the listener ends ``fit``.

    Args:
        journal: Path of the journal.
        listener: Called in the thread of ``Tuner.fit``.
    """
    listeners = _listeners.setdefault(Path(journal).absolute(), [])
    listeners.append(listener)
    try:
        yield
    finally:
        listeners.remove(listener)
