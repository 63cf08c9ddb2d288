"""Opens a study: loads its last snapshot if there is one, and replays the rest of its journal."""

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
from sluice.tuning.resumable.event_order import ArrivalStudy, OrderedStudy
from sluice.tuning.resumable.events import StudyEvent
from sluice.tuning.resumable.journal import StudyJournal
from sluice.tuning.resumable.snapshots import read_header, read_study, write_snapshot
from sluice.tuning.resumable.study import Study

_SNAPSHOT_AFTER_S = 2.0
"""A snapshot is written when the decisions since the last snapshot took this time [s]. A replay of
these decisions would take about the same time."""

_MAX_SNAPSHOT_SHARE = 0.1
"""Maximum ratio of the time for snapshots to the time for decisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings:
    """Settings of a study, besides its scheduler and its searcher."""

    time_attr: str
    """Name of the reported counter that increases with training."""
    ordered: bool
    """Whether events are applied in the order of a virtual clock."""
    concurrency: int | None
    """Maximum number of concurrent trials; None for as many as the cluster has workers."""
    seed: int
    """Seed of the scheduler's random numbers."""
    errors: Literal["record", "stop"]
    """Whether a failure that Tune does not retry is recorded, or ends the study."""
    workers: int | None = None
    """Maximum number of workers; None for as many as fit on the cluster. It does not affect the
    decisions of an ordered study."""


class OpenStudy:
    """A study with its journal.

    Args:
        path: Path of the journal.
        settings: Settings of the study, from the arguments of ``wrappers.resumable``.
        scheduler: The wrapped scheduler, which is copied.
        searcher: The wrapped searcher, which is copied; None without one.
        metric: Name of the metric.
        num_samples: Total number of trials.

    Raises:
        ContractError: The journal belongs to another study or has another format version, or the
            replayed decisions differ from the journal.
        IntegrityError: A line of the journal is damaged.
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
            "scheduler": describe_class(scheduler),
            "searcher": describe_class(searcher),
            "metric": metric,
            "time_attr": settings.time_attr,
            "num_samples": num_samples,
            "concurrency": settings.concurrency,
            "ordered": settings.ordered,
            "seed": settings.seed,
        }
        self.journal = StudyJournal(path, subject)
        self._snapshot_path = path.with_name(path.name + ".copy")
        self._decision_s = self._snapshot_s = 0.0
        """Time of the decisions since the last snapshot, and duration of the last snapshot [s]."""
        self._may_snapshot = True
        """Whether the last snapshot could be written."""
        try:
            self.study, num_bytes = self._load_snapshot()
            if self.study is None:
                self.study = self._new_study(scheduler, searcher, num_samples)
            started = time.perf_counter()
            self.study.replay(self.journal.iter_events(num_bytes))
            self._decision_s = time.perf_counter() - started
        except BaseException:
            self.journal.close()
            raise

    def driver(self, on_applied: Callable[[StudyEvent], None]) -> StudyDriver:
        """Return the driver that binds Tune's trials to the study."""
        return StudyDriver(
            self.study,
            metric=self._metric,
            time_attr=self._settings.time_attr,
            stop_on_error=self._settings.errors == "stop",
            max_workers=self._settings.workers,
            on_applied=on_applied,
        )

    def add_decision_time(self, seconds: float) -> None:
        """Add time that was spent on decisions; write a snapshot if it is due."""
        self._decision_s += seconds
        interval_s = max(_SNAPSHOT_AFTER_S, self._snapshot_s / _MAX_SNAPSHOT_SHARE)
        if not self._may_snapshot or self._decision_s < interval_s:
            return
        started = time.perf_counter()
        self._may_snapshot = write_snapshot(
            self._snapshot_path,
            self.study,
            size=self.journal.size,
            digest=self.journal.digest.hexdigest(),
        )
        self._snapshot_s, self._decision_s = time.perf_counter() - started, 0.0

    def _load_snapshot(self) -> tuple[Any, int]:
        """Return the study of the snapshot and the number of bytes of the journal that it covers.

        Return (None, 0) if no snapshot can be used.
        """
        header = read_header(self._snapshot_path)
        if not header or header.get("digest") != self.journal.digest_of(header.get("size", 0)):
            return None, 0
        study = read_study(self._snapshot_path, header)
        if study is None:
            return None, 0
        study.set_recorder(self.journal.append)
        return study, header["size"]

    def _new_study(
        self, scheduler: TrialScheduler, searcher: Searcher | None, num_samples: int
    ) -> Study:
        arguments: dict[str, Any] = {
            "metric": self._metric,
            "time_attr": self._settings.time_attr,
            "num_samples": num_samples,
            "seed": self._settings.seed,
            "folder": str(self._path.parent),
            "record": self.journal.append,
            "num_slots": self._settings.concurrency,
        }
        copies = copy.deepcopy(scheduler), copy.deepcopy(searcher)
        if self._settings.ordered:
            return OrderedStudy(*copies, **arguments)
        limit_text = os.environ.get("TUNE_MAX_PENDING_TRIALS_PG", "")
        max_pending = int(limit_text) if limit_text.isdigit() else 1
        return ArrivalStudy(*copies, max_pending=max_pending, **arguments)


def describe_class(wrapped: object) -> dict[str, Any]:
    """Return the class and the scalar attributes of a scheduler or searcher, as its identity."""
    if wrapped is None:
        return {}
    scalars = {
        name.lstrip("_"): value
        for name, value in sorted(vars(wrapped).items())
        if isinstance(value, str | int | float | bool)
    }
    return {"class": f"{type(wrapped).__module__}:{type(wrapped).__qualname__}", **scalars}
