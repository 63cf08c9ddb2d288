"""What the decisions of a large study cost, on a virtual cluster inside this process.

The scheduler, the searcher, the journal and its disk are real. Simulated are the workers, their
clocks and their training: a trial is a row of a heap that is due at a virtual time. Tune's own loop
and its worker processes are not here; ``wrapper_cost`` measures these.
"""

import gc
import heapq
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from sluice.errors import ContractError
from sluice.models.settings import ModelSettings
from sluice.settings import Record
from sluice.training.settings import TrainSettings
from sluice.tuning.default_space import default_space
from sluice.tuning.records import Strategy
from sluice.tuning.schedulers import make_scheduler
from sluice.tuning.searchers import make_searcher
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import Setup

if TYPE_CHECKING:
    from sluice.tuning.resumable.opening import OpenStudy
    from sluice.tuning.resumable.study import Event, Study

Proposals = Literal["random", "tpe"]

_PROPOSALS: tuple[Proposals, ...] = ("random", "tpe")
_MAX_EPOCHS, _GRACE_EPOCHS, _SEED = 27, 1, 0
_JITTER = 0.3
"""Standard deviation of the logarithm of an epoch's virtual time."""
_RATE, _BEST_RATE = "training.learning_rate", 3e-3
_MIB = 2.0**20


class ScaleCost(Record):
    """What the process that decides about a large study spends; its workers are simulated."""

    proposals: Proposals
    ordered: bool = Field(description="Results in the order of a virtual clock, else of arrival.")
    num_trials: int
    num_workers: int = Field(description="Simulated; no process runs for any of them.")
    num_results: int = Field(description="Reported by all trials, one for each epoch.")
    result_ms: float = Field(
        description="Mean time for each result: scheduler, suggestions, journal on disk [ms]."
    )
    slowest_ms: float = Field(description="The longest that a worker waited for a decision [ms].")
    memory_mib: float = Field(description="That this process grew by [MiB].")
    journal_mib: float = Field(description="Size of the journal [MiB].")
    copy_mib: float = Field(description="Size of the last copy of the study beside it [MiB].")
    restore_s: float = Field(description="To open the study again after a kill [s].")
    replay_s: float = Field(description="The same without the copy: the whole journal [s].")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One study and where its journal lies."""

    proposals: Proposals
    ordered: bool
    num_trials: int
    num_workers: int
    folder: Path

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"

    def open(self) -> "OpenStudy":
        """Open the study with a fresh scheduler and a fresh searcher."""
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


class _VirtualCluster:
    """Feeds a study with what its trials report, in the order of virtual time.

    Args:
        opened: The study.
        num_workers: Trials that can run at a time.
    """

    def __init__(self, opened: "OpenStudy", num_workers: int) -> None:
        self._opened, self._study, self._num_workers = opened, opened.study, num_workers
        self._rng = np.random.default_rng(_SEED)
        self._due: list[tuple[float, int]] = []
        """Heap of virtual times and trials: when a trial has trained its next epoch."""
        self._training: set[int] = set()
        self._now = 0.0
        self.num_results = 0
        self.decisions_s: list[float] = []
        """Time of each call of the study, with its share of copies [s]."""

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
        began = time.perf_counter()
        answer = call()
        self._opened.spent(time.perf_counter() - began)
        self.decisions_s.append(time.perf_counter() - began)
        return answer


def measure_scale(*, num_trials: int, num_workers: int, folder: Path) -> tuple[ScaleCost, ...]:
    """Run ASHA with random values and with TPE, by arrival and ordered, on simulated workers.

    Args:
        num_trials: Trials of each study.
        num_workers: Simulated workers.
        folder: For the journals; its disk is part of what is measured.
    """
    found: list[ScaleCost] = []
    kept: list[Study] = []  # freed memory would hide what the next study needs
    _warm_up(folder)
    for proposals in _PROPOSALS:
        for ordered in (False, True):
            case = _Case(
                proposals=proposals,
                ordered=ordered,
                num_trials=num_trials,
                num_workers=num_workers,
                folder=folder / f"{proposals}-{'ordered' if ordered else 'arrival'}",
            )
            found.append(_measure(case, kept))
    return tuple(found)


def _measure(case: _Case, kept: list["Study"]) -> ScaleCost:
    before = _resident()
    opened = case.open()
    cluster = _VirtualCluster(opened, case.num_workers)
    cluster.run()
    grown = _resident() - before
    opened.journal.close()
    kept.append(opened.study)
    copy = case.journal.with_name(case.journal.name + ".copy")
    copied = copy.stat().st_size if copy.exists() else 0
    restore_s = _open_again(case, opened.study, kept)
    copy.unlink(missing_ok=True)
    return ScaleCost(
        proposals=case.proposals,
        ordered=case.ordered,
        num_trials=case.num_trials,
        num_workers=case.num_workers,
        num_results=cluster.num_results,
        result_ms=1000 * math.fsum(cluster.decisions_s) / cluster.num_results,
        slowest_ms=1000 * max(cluster.decisions_s),
        memory_mib=grown / _MIB,
        journal_mib=opened.journal.size / _MIB,
        copy_mib=copied / _MIB,
        restore_s=restore_s,
        replay_s=_open_again(case, opened.study, kept),
    )


def _open_again(case: _Case, original: "Study", kept: list["Study"]) -> float:
    """Return how long the study takes to open again [s].

    Raises:
        ContractError: It is not the study that was closed.
    """
    began = time.perf_counter()
    opened = case.open()
    seconds = time.perf_counter() - began
    opened.journal.close()
    kept.append(opened.study)
    ends, again = (
        [(trial.config, trial.status, trial.time) for trial in study.trials]
        for study in (original, opened.study)
    )
    if ends != again:
        differing = sum(a != b for a, b in zip(ends, again, strict=False))
        raise ContractError(
            f"The same trials are required after a restore; of {len(ends)}, {len(again)} are "
            f"there and {differing} differ.",
            cause="A decision followed from something that is not in the journal.",
            fix=f"Keep {case.journal} and report it.",
        )
    return seconds


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


def _resident() -> int:
    """Return the memory of this process [bytes]."""
    import psutil

    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _warm_up(folder: Path) -> None:
    """Load the libraries, which take seconds once and are no part of a study's memory."""
    for proposals in _PROPOSALS:
        case = _Case(
            proposals=proposals,
            ordered=False,
            num_trials=12,
            num_workers=2,
            folder=folder / f"warm-{proposals}",
        )
        opened = case.open()
        _VirtualCluster(opened, case.num_workers).run()
        opened.journal.close()
