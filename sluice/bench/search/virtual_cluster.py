"""A study with real decisions and simulated workers in one process.

Scheduler, searcher, journal and disk are real; workers, their clocks and training are simulated.
Tune's loop and its worker processes are not included; ``wrapper_cost`` measures these.
"""

import heapq
import json
import math
import time
from collections.abc import Mapping
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

_MAX_EPOCHS, _GRACE_EPOCHS, _SEED = 27, 1, 0
_JITTER = 0.3
"""Standard deviation of the log of an epoch's virtual time."""
_LEARNING_RATE, _BEST_LEARNING_RATE = "training.learning_rate", 3e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStudy:
    """A study of the default space with simulated trials."""

    proposals: Proposals
    ordered: bool
    num_trials: int
    num_workers: int
    folder: Path
    """Folder of the journal."""

    @property
    def journal(self) -> Path:
        """Path of the journal."""
        return self.folder / "journal.jsonl"

    def open(self) -> "OpenStudy":
        """Open the study with a new scheduler and a new searcher; replay an existing journal."""
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
            self.journal,
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

    Each epoch of a trial takes a random time. The number of workers is the study's limit of
    concurrent trials.

    Args:
        open_study: The study and its journal.
    """

    def __init__(self, open_study: "OpenStudy") -> None:
        self._open_study, self._study = open_study, open_study.study
        self._rng = np.random.default_rng(_SEED)
        self._due: list[tuple[float, int]] = []
        """Heap of (virtual time, trial): when a trial completes its next epoch."""
        self._training: set[int] = set()
        self._now = 0.0
        self.num_results = 0
        self.decisions_s: list[float] = []
        """Duration of each call of the study, snapshots included [s]."""
        self.cpu_s = 0.0
        """CPU time of all calls [s]."""

    def run(self) -> None:
        """Run all trials."""
        from sluice.tuning.resumable.events import StudyEvent

        self._timed(self._study.start)
        self._train()
        while self._due:
            self._now, number = heapq.heappop(self._due)
            self._training.discard(number)
            trial = self._study.trials[number]
            epoch = int(trial.time) + 1
            self._receive(
                StudyEvent(
                    trial=number,
                    attempt=trial.attempt,
                    result=_result(trial.config, epoch),
                    checkpoint=f"/storage/study/tune/trial_{number:05d}/checkpoint_{epoch:06d}",
                )
            )
            self.num_results += 1
            self._train()

    def _train(self) -> None:
        """Start suggested trials, and schedule the next epoch of every running trial."""
        from sluice.tuning.resumable.events import StudyEvent

        while self._timed(self._suggest):
            next_trial = self._study.next_to_start()
            if next_trial is not None:
                self._receive(StudyEvent(trial=next_trial, kind="start"))
        for trial in self._study.running_trials():
            if trial.number in self._training or self._study.has_pending_event(trial.number):
                continue
            self._training.add(trial.number)
            epoch_time = float(self._rng.lognormal(0.0, _JITTER))
            heapq.heappush(self._due, (self._now + epoch_time, trial.number))

    def _suggest(self) -> bool:
        return self._study.suggest() or self._study.next_to_start() is not None

    def _receive(self, event: "StudyEvent") -> None:
        self._timed(lambda: self._study.receive(event))

    def _timed(self, call: Any) -> Any:
        began, cpu = time.perf_counter(), time.process_time()
        result = call()
        self._open_study.add_decision_time(time.perf_counter() - began)
        self.cpu_s += time.process_time() - cpu
        self.decisions_s.append(time.perf_counter() - began)
        return result


def _result(config: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """Return the report of a trial, with the metrics of the real trainable."""
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
