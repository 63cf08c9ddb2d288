"""Opens a study: the journal is replayed, from the last copy of the study where there is one."""

import copy
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from sluice.tuning.resumable.driver import StudyDriver
from sluice.tuning.resumable.events import Event
from sluice.tuning.resumable.journal import StudyJournal
from sluice.tuning.resumable.orders import ArrivalStudy, OrderedStudy
from sluice.tuning.resumable.snapshots import read_header, read_study, write_snapshot
from sluice.tuning.resumable.study import Study

_COPY_AFTER_S = 2.0
"""A copy is written when a replay from the last one would take this long [s]."""

_MAX_SHARE = 0.1
"""Of the time of decisions, what may be spent on copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings:
    """What decides the order of a study, besides its scheduler and its searcher."""

    time_attr: str
    ordered: bool
    concurrency: int | None
    seed: int
    errors: Literal["record", "stop"]
    workers: int | None = None
    """Trials that have a worker at a time; changes no decision of an ordered study."""


class OpenStudy:
    """A study with its journal.

    Args:
        path: Path of the journal.
        settings: The wrapper's arguments.
        scheduler: The wrapped scheduler, which is copied.
        searcher: The wrapped searcher, which is copied; None without one.
        metric: Name of the metric.
        num_samples: Number of trials in all.

    Raises:
        ContractError: The journal belongs to another study or another version, or the replay
            leads elsewhere.
        StorageError: The journal cannot be read or written.
    """

    def __init__(
        self,
        path: Path,
        settings: StudySettings,
        scheduler: TrialScheduler,
        searcher: Searcher | None,
        *,
        metric: str,
        num_samples: int,
    ) -> None:
        self._path, self._settings, self._metric = path, settings, metric
        subject = {
            "scheduler": described(scheduler),
            "searcher": described(searcher),
            "metric": metric,
            "time_attr": settings.time_attr,
            "num_samples": num_samples,
            "concurrency": settings.concurrency,
            "ordered": settings.ordered,
            "seed": settings.seed,
        }
        self.journal = StudyJournal(path, subject)
        self._snapshot = path.with_name(path.name + ".copy")
        self._decided_s = self._copied_s = 0.0
        self._may_copy = True
        try:
            self.study, since = self._from_copy()
            if self.study is None:
                self.study = self._fresh(scheduler, searcher, num_samples)
            begun = time.perf_counter()
            self.study.replay(self.journal.restored(since))
            self._decided_s = time.perf_counter() - begun
        except BaseException:
            self.journal.close()
            raise

    def driver(self, applied: Callable[[Event], None]) -> StudyDriver:
        """Return what binds Tune's trials to the study."""
        return StudyDriver(
            self.study,
            metric=self._metric,
            time_attr=self._settings.time_attr,
            stop_on_error=self._settings.errors == "stop",
            workers=self._settings.workers,
            applied=applied,
        )

    def spent(self, seconds: float) -> None:
        """Count time that went into decisions; write a copy when it is time to."""
        self._decided_s += seconds
        if not self._may_copy or self._decided_s < max(_COPY_AFTER_S, self._copied_s / _MAX_SHARE):
            return
        begun = time.perf_counter()
        self._may_copy = write_snapshot(
            self._snapshot,
            self.study,
            size=self.journal.size,
            digest=self.journal.digest.hexdigest(),
        )
        self._copied_s, self._decided_s = time.perf_counter() - begun, 0.0

    def _from_copy(self) -> tuple[Any, int]:
        header = read_header(self._snapshot)
        if not header or header.get("digest") != self.journal.digest_of(header.get("size", 0)):
            return None, 0
        study = read_study(self._snapshot, header)
        if study is None:
            return None, 0
        study.record_with(self.journal.append)
        return study, header["size"]

    def _fresh(
        self, scheduler: TrialScheduler, searcher: Searcher | None, num_samples: int
    ) -> Study:
        common: dict[str, Any] = {
            "metric": self._metric,
            "time_attr": self._settings.time_attr,
            "num_samples": num_samples,
            "seed": self._settings.seed,
            "folder": str(self._path.parent),
            "record": self.journal.append,
            "num_slots": self._settings.concurrency,
        }
        wrapped = copy.deepcopy(scheduler), copy.deepcopy(searcher)
        if self._settings.ordered:
            return OrderedStudy(*wrapped, **common)
        pending = os.environ.get("TUNE_MAX_PENDING_TRIALS_PG", "")
        max_pending = int(pending) if pending.isdigit() else 1
        return ArrivalStudy(*wrapped, max_pending=max_pending, **common)


def described(of: object) -> dict[str, Any]:
    """Return the class of a scheduler or searcher and those of its settings that are scalars."""
    if of is None:
        return {}
    scalars = {
        name.lstrip("_"): value
        for name, value in sorted(vars(of).items())
        if isinstance(value, str | int | float | bool)
    }
    return {"class": f"{type(of).__module__}:{type(of).__qualname__}", **scalars}
