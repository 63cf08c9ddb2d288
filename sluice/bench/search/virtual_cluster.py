"""A study of real decisions whose workers are rows of a heap in this process.

The scheduler, the searcher, the journal and its disk are real. Simulated are the workers, their
clocks and their training. Tune's own loop and its worker processes are not here; ``wrapper_cost``
measures these.
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
from sluice.tuning.spaces import Setup

if TYPE_CHECKING:
    from sluice.tuning.resumable.events import Event
    from sluice.tuning.resumable.opening import OpenStudy

Proposals = Literal["random", "tpe"]

_MAX_EPOCHS, _GRACE_EPOCHS, _SEED = 27, 1, 0
_JITTER = 0.3
"""Standard deviation of the logarithm of an epoch's virtual time."""
_RATE, _BEST_RATE = "training.learning_rate", 3e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStudy:
    """A study of the default space whose trials are simulated."""

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
        """Open the study with a fresh scheduler and a fresh searcher; replay what is there."""
        from sluice.tuning.resumable.opening import OpenStudy, StudySettings

        base = Setup(
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
    """Feeds a study with what its trials report, in the order of virtual time.

    Every epoch of a trial takes a random time. There are as many workers as the study lets trials
    run at a time.

    Args:
        opened: The study.
    """

    def __init__(self, opened: "OpenStudy") -> None:
        self._opened, self._study = opened, opened.study
        self._rng = np.random.default_rng(_SEED)
        self._due: list[tuple[float, int]] = []
        """Heap of virtual times and trials: when a trial has trained its next epoch."""
        self._training: set[int] = set()
        self._now = 0.0
        self.num_results = 0
        self.decisions_s: list[float] = []
        """Time of each call of the study, with its share of copies [s]."""
        self.cpu_s = 0.0
        """Processor time of all of them [s]."""

    def run(self) -> None:
        """Run all trials."""
        from sluice.tuning.resumable.events import Event

        self._timed(self._study.start)
        self._train()
        while self._due:
            self._now, number = heapq.heappop(self._due)
            self._training.discard(number)
            trial = self._study.trials[number]
            epoch = int(trial.time) + 1
            self._receive(
                Event(
                    trial=number,
                    attempt=trial.attempt,
                    result=_result(trial.config, epoch),
                    checkpoint=f"/storage/study/tune/trial_{number:05d}/checkpoint_{epoch:06d}",
                )
            )
            self.num_results += 1
            self._train()

    def _train(self) -> None:
        """Start what should run and does not."""
        from sluice.tuning.resumable.events import Event

        while self._timed(self._suggest):
            chosen = self._study.choice()
            if chosen is not None:
                self._receive(Event(trial=chosen, kind="start"))
        for trial in self._study.running():
            if trial.number in self._training or self._study.is_waiting(trial.number):
                continue
            self._training.add(trial.number)
            epoch_time = float(self._rng.lognormal(0.0, _JITTER))
            heapq.heappush(self._due, (self._now + epoch_time, trial.number))

    def _suggest(self) -> bool:
        return self._study.suggest() or self._study.choice() is not None

    def _receive(self, event: "Event") -> None:
        self._timed(lambda: self._study.receive(event))

    def _timed(self, call: Any) -> Any:
        began, cpu = time.perf_counter(), time.process_time()
        answer = call()
        self._opened.spent(time.perf_counter() - began)
        self.cpu_s += time.process_time() - cpu
        self.decisions_s.append(time.perf_counter() - began)
        return answer


def _result(config: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """Return what a trial reports, with the metrics of the real trainable."""
    loss = 1.0 + abs(math.log10(config[_RATE] / _BEST_RATE)) + 1.0 / epoch
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
