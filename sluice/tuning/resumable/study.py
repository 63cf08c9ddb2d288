"""The decisions of a study as a function of its journal.

A scheduler and a searcher of Ray Tune run here in a world of their own, with stand-ins for trials.
Events are applied one after another; each is written to the journal before it is applied. Replayed
into fresh objects, the journal gives the same suggestions, stops and copies.

Two classes say in which order events are applied and when trials are suggested:
``OrderedStudy`` by a virtual clock, ``ArrivalStudy`` as they come.
"""

import json
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from sluice.base.errors import ContractError
from sluice.tuning.resumable.draws import SeededDraws
from sluice.tuning.resumable.events import Attempt, CheckpointKey, Event, EventLines
from sluice.tuning.resumable.reports import Reports
from sluice.tuning.resumable.shadow import ShadowController, ShadowTrial

Record = Callable[[Mapping[str, Any], bool], None]
"""Writes a line; the flag says whether it must be on disk before anything else happens."""


class Study(ABC):
    """Applies events to a scheduler and a searcher in one order.

    Args:
        scheduler: A fresh scheduler of Ray Tune.
        searcher: A fresh searcher; None where configurations come by ``offer``.
        metric: Name of the metric.
        time_attr: Name of the reported counter that grows with training, as "epoch".
        num_samples: Number of trials in all.
        seed: Seed of every random draw of the scheduler.
        folder: Folder of the files that a scheduler writes.
        record: Writes an event or a suggestion before it takes effect.
    """

    def __init__(
        self,
        scheduler: TrialScheduler,
        searcher: Searcher | None,
        *,
        metric: str,
        time_attr: str,
        num_samples: int,
        seed: int,
        folder: str,
        record: Record,
    ) -> None:
        self._scheduler: Any = scheduler  # it is given stand-ins for what it names
        self._searcher = searcher
        self._metric, self._time_attr = metric, time_attr
        self._num_samples = math.inf if searcher is None else num_samples
        self._folder = folder
        self._record: Record = record
        self._lines, self._draws, self._reports = EventLines(), SeededDraws(seed), Reports()
        self._live: dict[int, ShadowTrial] = {}
        self._num: Counter[str] = Counter()
        self._changed: dict[int, None] = {}
        self._exhausted = False
        self.trials: list[ShadowTrial] = []
        """All trials suggested so far; their index is their number."""
        self._controller = ShadowController(self.trials, searcher, self._stop, self._reports.save)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_record"}

    def record_with(self, record: Record) -> None:
        """Write to this journal from now on, as after a copy was read from a file."""
        self._record = record

    # What happens

    @abstractmethod
    def replay(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Apply the lines of a journal.

        Raises:
            ContractError: The scheduler or the searcher decides differently than the journal says.
        """

    @abstractmethod
    def offer(self, config: Mapping[str, Any]) -> int:
        """Add a trial whose configuration was chosen outside; return its number."""

    @abstractmethod
    def receive(self, event: Event) -> list[Event]:
        """Take in an event; return the events that were applied, in their order."""

    @abstractmethod
    def suggest(self) -> bool:
        """Return whether there is a trial that was not there before, or make one."""

    @abstractmethod
    def start(self) -> None:
        """Let the first trials run; no more is offered."""

    @abstractmethod
    def choice(self) -> int | None:
        """Return the trial that gets the next worker, of those that do not run."""

    # What is

    @abstractmethod
    def position(self, trial: int) -> tuple[int, int]:
        """Return what running trials are sorted by, the one that is due first."""

    @abstractmethod
    def is_waiting(self, trial: int) -> bool:
        """Return whether an event of the trial has arrived and is not applied yet."""

    def is_exhausted(self) -> bool:
        """Return whether there will be no further trial."""
        return self._exhausted or len(self.trials) >= self._num_samples

    def is_finished(self) -> bool:
        """Return whether no trial runs or will run again."""
        return not self._live

    def running(self) -> tuple[ShadowTrial, ...]:
        """Return the trials that run, the next due first."""
        runs = [trial for trial in self._live.values() if trial.status == Trial.RUNNING]
        return tuple(sorted(runs, key=lambda trial: self.position(trial.number)))

    def num_known(self) -> int:
        """Return the number of trials that need not be offered again."""
        return len(self.trials)

    def latest_checkpoint(self, trial: int) -> tuple[str, dict[str, Any]]:
        """Return the path that a trial continues from, and the result that came with it.

        The path is empty where the trial starts from nothing.
        """
        return self._reports.latest(self.trials[trial])

    def own_checkpoint(self, trial: int) -> str:
        """Return the path of the last checkpoint that a trial wrote itself; empty without one."""
        return self._reports.written(self.trials[trial])

    def attempts_of(self, number: int) -> tuple[Attempt, ...]:
        """Return the attempts that led to a trial's present weights, oldest first.

        The first starts from nothing. Each later one starts from a checkpoint of the one before
        it, which another trial may have run. A trial that never copied has one attempt.
        """
        chain = [self.trials[number].attempts[-1]]
        while (start := chain[0].start) is not None:
            chain.insert(0, self.trials[start.trial].attempts[start.attempt])
        return tuple(chain)

    def results_of(self, number: int) -> tuple[dict[str, Any], ...]:
        """Return the results that led to a trial's present weights, from the first one on."""
        trial = self.trials[number]
        last = CheckpointKey(number, trial.attempt, trial.time)
        return tuple(dict(r) for r in self._reports.along(self.attempts_of(number), last))

    def own_results_of(self, number: int) -> tuple[dict[str, Any], ...]:
        """Return the results that a trial's own workers reported, those it left behind included."""
        attempts = range(len(self.trials[number].attempts))
        return tuple(dict(r) for a in attempts for r in self._reports.of(number, a))

    def checkpoints_needed(self) -> frozenset[str]:
        """Return the paths of checkpoints that a trial may still start from.

        They are the latest one of every trial that has not ended, what those copied, and what the
        scheduler remembers for a copy. Others that the journal names may be removed.
        """
        return frozenset(self._reports.needed(self._live.values())) - {""}

    def take_changed(self) -> list[int]:
        """Return the trials that changed since the last call."""
        changed, self._changed = list(self._changed), {}
        return changed

    # Suggestions

    def _ask(self) -> dict[str, Any] | None:
        """Ask the searcher for a configuration."""
        assert self._searcher is not None
        with self._draws.step():
            suggested: Any = self._searcher.suggest(f"{len(self.trials):05d}")
        if suggested is None or suggested == Searcher.FINISHED:
            # How often Tune asks in vain depends on time, so that it must leave no trace.
            self._draws.undo()
            self._exhausted = suggested is not None
            return None
        return dict(suggested)

    def _add(self, config: Mapping[str, Any]) -> None:
        trial = ShadowTrial(
            number=len(self.trials),
            config=dict(config),
            folder=self._folder,
            evaluated_params=dict(config),
            observe=self._observe,
        )
        self.trials.append(trial)
        self._live[trial.number] = trial
        self._num[trial.status] += 1
        with self._draws.step():
            self._scheduler.on_trial_add(self._controller, trial)
        trial.begin_attempt(None)

    def _require_same(self, line: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        number = len(self.trials)
        if plain(config) != line["config"] or number != line["trial"]:
            raise ContractError(
                f"The searcher suggests {plain(config)} for trial {number}, the journal has "
                f"{line['config']} for trial {line['trial']}.",
                cause="The searcher draws from a generator without a fixed seed.",
                fix="Give the searcher and its sampler a fixed seed.",
            )

    # Decisions

    def _choose(self) -> ShadowTrial | None:
        if not self._num[Trial.PENDING] and not self._num[Trial.PAUSED]:
            return None
        with self._draws.step():
            chosen: ShadowTrial | None = self._scheduler.choose_trial_to_run(self._controller)
        return chosen

    def _run(self, trial: ShadowTrial) -> None:
        if trial.config != trial.attempts[-1].config:
            trial.begin_attempt(trial.checkpoint if trial.time else None)
        trial.status = Trial.RUNNING

    def _require_running(self, event: Event) -> ShadowTrial:
        number = event.trial
        if number >= len(self.trials) or self.trials[number].status != Trial.RUNNING:
            raise ContractError(
                f"The journal has a report of trial {number}, which does not run at that point.",
                cause="The scheduler decides otherwise than when the journal was written: its code "
                "or that of Ray changed, or it decides by the time of day.",
                fix="Go on with the releases that began the study, or begin it in another folder.",
            )
        return self.trials[number]

    def _apply(self, event: Event) -> None:
        trial = self._require_running(event)
        self._changed[trial.number] = None
        result = dict(event.result)
        if result:
            trial.time = result[self._time_attr]
            self._reports.add(trial, result, event.checkpoint)
            # Tune's own counter starts at 1 again whenever a trial is restored.
            trial.last_result = {**result, "training_iteration": trial.time}
        if event.kind == "error":
            self._end(trial, Trial.ERROR, event.reason)
        elif result and not math.isfinite(result[self._metric]):
            shown = f"{self._metric} is {result[self._metric]} at {self._time_attr} {trial.time}."
            self._end(trial, Trial.ERROR, str(result.get("reason") or shown))
        elif event.kind == "complete":
            self._end(trial, Trial.TERMINATED, event.reason)
        else:
            self._decide(trial, dict(trial.last_result))

    def _decide(self, trial: ShadowTrial, result: dict[str, Any]) -> None:
        with self._draws.step():
            decision = self._scheduler.on_trial_result(self._controller, trial, result)
        if decision == TrialScheduler.STOP:
            self._stop(trial)
            return
        if decision == TrialScheduler.PAUSE and trial.status == Trial.RUNNING:
            trial.status = Trial.PAUSED
        if self._searcher is not None:
            with self._draws.step():
                self._searcher.on_trial_result(trial.trial_id, result)

    def _stop(self, trial: ShadowTrial) -> None:
        """End a trial that the scheduler asked to end, also while another one reported."""
        self._end(trial, Trial.TERMINATED, f"stopped at {self._time_attr} {trial.time}")

    def _end(self, trial: ShadowTrial, status: str, reason: str) -> None:
        if trial.is_finished():
            return
        ran, failed, trial.reason = trial.status == Trial.RUNNING, status == Trial.ERROR, reason
        with self._draws.step():
            if failed:
                self._scheduler.on_trial_error(self._controller, trial)
            elif ran:
                self._scheduler.on_trial_complete(self._controller, trial, trial.last_result)
            else:
                self._scheduler.on_trial_remove(self._controller, trial)
        trial.status = status
        if self._searcher is not None:
            result = trial.last_result if ran and not failed else None
            with self._draws.step():
                self._searcher.on_trial_complete(trial.trial_id, result=result, error=failed)

    def _observe(self, trial: ShadowTrial, before: str) -> None:
        """Keep the counts after the status or the attempt of a trial changed."""
        self._num[before] -= 1
        self._num[trial.status] += 1
        self._changed[trial.number] = None
        if trial.is_finished():
            self._live.pop(trial.number, None)


def plain(config: Mapping[str, Any]) -> Any:
    """Return a configuration as it is read from the journal."""
    return json.loads(json.dumps(config, default=str))
