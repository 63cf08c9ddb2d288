"""A study with real decisions and simulated workers in one process.

Scheduler, searcher, journal and disk are real. Workers, their clocks and training are simulated.
The event loop and worker processes of Tune are not included; ``wrapper_cost`` measures them.
"""

import heapq
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.tuning.default_space import default_space
from sluice.tuning.records import Strategy
from sluice.tuning.schedulers import make_scheduler
from sluice.tuning.searchers import make_searcher
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import TrialSettings

if TYPE_CHECKING:
    from sluice.tuning.resumable.events import StudyEvent
    from sluice.tuning.resumable.open_study import OpenStudy

Proposals = Literal["random", "tpe"]
"""Sampler that proposes the values of trials."""

_MAX_EPOCHS, _GRACE_EPOCHS, _SEED = 27, 1, 0
_LOG_EPOCH_TIME_SD = 0.3
"""Standard deviation of the log of an epoch's virtual duration."""

_LEARNING_RATE, _BEST_LEARNING_RATE = "training.learning_rate", 3e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStudy:
    """A study of the default space with simulated trials."""

    proposals: Proposals
    ordered: bool
    """Whether results are applied in an order that does not depend on the speed of workers."""

    num_trials: int
    num_workers: int
    folder: Path
    """Folder of the journal."""

    @property
    def journal_path(self) -> Path:
        """Path of the journal."""
        return self.folder / "journal.jsonl"

    def open(self) -> "OpenStudy":
        """Open the study with a new scheduler and searcher; replay the journal if it exists."""
        from sluice.tuning.resumable.open_study import OpenStudy, StudySettings

        base = TrialSettings(
            model=ModelSettings(architecture="gru"),
            training=TrainSettings(max_epochs=_MAX_EPOCHS),
        )
        space = default_space(base)
        settings = SearchSettings(
            num_trials=self.num_trials, grace_epochs=_GRACE_EPOCHS, seed=_SEED
        )
        strategy = Strategy(
            proposals=self.proposals,
            scheduler="asha",
            parameters=tuple(space.parameters),
            decision_epochs=tuple(range(1, _MAX_EPOCHS)),
            reason="A benchmark.",
        )
        scheduler = make_scheduler(settings, strategy, space, _MAX_EPOCHS)
        scheduler.set_search_properties("loss", "min")
        return OpenStudy(
            self.journal_path,
            StudySettings(
                time_attr="epoch",
                ordered=self.ordered,
                concurrency=self.num_workers,
                seed=_SEED,
                errors="record",
            ),
            scheduler,
            make_searcher(settings, strategy, space, base, "loss"),
            metric="loss",
            num_samples=self.num_trials,
        )


class VirtualCluster:
    """Reports the results of simulated trials to a study, in the order of virtual time.

    Each epoch of a trial takes a random virtual time.

    Args:
        open_study: The study and its journal. The number of workers is the study's limit of
            concurrent trials.
    """

    def __init__(self, open_study: "OpenStudy") -> None:
        self._open_study, self._study = open_study, open_study.study
        self._rng = np.random.default_rng(_SEED)
        self._epoch_ends: list[tuple[float, int]] = []
        """Heap of (virtual time, trial number): when a trial completes its current epoch."""
        self._busy_trials: set[int] = set()
        """Numbers of the trials that have an entry in ``_epoch_ends``."""
        self._now = 0.0
        """Virtual time."""
        self.num_results = 0
        """Number of results that were reported to the study."""
        self.decisions_s: list[float] = []
        """Wall time of each call of the study, snapshots included [s]."""
        self.cpu_s = 0.0
        """CPU time of all calls of the study [s]."""

    def run(self) -> None:
        """Run all trials to their end."""
        from sluice.tuning.resumable.events import StudyEvent

        self._time_call(self._study.start)
        self._start_epochs()
        while self._epoch_ends:
            self._now, number = heapq.heappop(self._epoch_ends)
            self._busy_trials.discard(number)
            trial = self._study.trials[number]
            epoch = int(trial.time) + 1
            self._receive(
                StudyEvent(
                    trial=number,
                    attempt=trial.attempt,
                    result=_make_result(trial.config, epoch),
                    checkpoint=f"/storage/study/tune/trial_{number:05d}/checkpoint_{epoch:06d}",
                )
            )
            self.num_results += 1
            self._start_epochs()

    def _start_epochs(self) -> None:
        """Start new trials while workers are free, and the next epoch of every running trial."""
        from sluice.tuning.resumable.events import StudyEvent

        while self._time_call(self._suggest):
            next_trial = self._study.next_to_start()
            if next_trial is not None:
                self._receive(StudyEvent(trial=next_trial, kind="start"))
        for trial in self._study.running_trials():
            if trial.number in self._busy_trials or self._study.has_pending_event(trial.number):
                continue
            self._busy_trials.add(trial.number)
            epoch_time = float(self._rng.lognormal(0.0, _LOG_EPOCH_TIME_SD))
            heapq.heappush(self._epoch_ends, (self._now + epoch_time, trial.number))

    def _suggest(self) -> bool:
        """Let the study suggest a trial; return whether a trial is new or can start."""
        return self._study.suggest() or self._study.next_to_start() is not None

    def _receive(self, event: "StudyEvent") -> None:
        self._time_call(lambda: self._study.receive(event))

    def _time_call(self, call: Callable[[], Any]) -> Any:
        """Call a method of the study, and record its wall and CPU time."""
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        result = call()
        self._open_study.add_decision_time(time.perf_counter() - start_s)
        self.cpu_s += time.process_time() - start_cpu_s
        self.decisions_s.append(time.perf_counter() - start_s)
        return result


def _make_result(config: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """Return a trial's result for an epoch, with the metrics that a real trial reports."""
    loss = 1.0 + abs(math.log10(config[_LEARNING_RATE] / _BEST_LEARNING_RATE)) + 1.0 / epoch
    return {
        "epoch": epoch,
        "loss": loss,
        "val_loss": loss,
        "train_loss": loss,
        "seconds": 1.0,
        "curve": json.dumps([[epoch, loss, loss, loss]]),
        "damaged_checkpoints": 0,
        "reason": "",
    }
