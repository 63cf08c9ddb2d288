"""The decisions of a study as a function of its journal.

A scheduler and a searcher of Ray Tune run here in a world of their own: stand-ins for trials, and
a number of slots on which trials run. Events (a result, an end, an error) are applied one after
another; each is written to the journal before it is applied. Replayed into fresh objects, the
journal gives the same suggestions, stops and copies.

With ``ordered=True`` the order of events is that of a virtual clock: every report takes one unit
of time on its slot, and what is due first is applied first, whichever worker was faster.
"""

import json
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from sluice.errors import ContractError
from sluice.training.seeds import derive_seed
from sluice.tuning.resumable.shadow import ShadowController, ShadowTrial

EventKind = Literal["result", "complete", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What a running trial reported."""

    trial: int
    attempt: int
    kind: EventKind
    result: Mapping[str, Any]
    """The reported scalars; of an end the last ones."""

    reason: str = ""
    checkpoint: str = ""
    """Path of the checkpoint that was reported with the result; empty without one."""


@dataclass(slots=True)
class _Slot:
    clock: int = 0
    trial: ShadowTrial | None = None


class Study:
    """Applies events to a scheduler and a searcher in one order.

    Args:
        scheduler: A fresh scheduler of Ray Tune.
        searcher: A fresh searcher; None where configurations are added by ``offer``.
        metric: Name of the metric.
        time_attr: Name of the reported counter that grows with training, as "epoch".
        num_samples: Number of trials in all.
        num_slots: Trials that run at a time by the virtual clock. Part of the decisions.
        ordered: Apply events in the order of the virtual clock, not of their arrival.
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
        num_slots: int,
        ordered: bool,
        seed: int,
        folder: str,
        record: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._scheduler: Any = scheduler  # it is given stand-ins for what it names
        self._searcher = searcher
        self._metric, self._time_attr = metric, time_attr
        self._num_samples = num_samples
        self._ordered, self._seed, self._folder = ordered, seed, folder
        self._record = record
        self._offered: deque[dict[str, Any]] = deque()
        self._slots = [_Slot() for _ in range(num_slots)]
        self._now = 0
        self._draws = 0
        self._exhausted = False
        self._arrived: dict[int, deque[Event]] = {}
        self._arrival_order: deque[int] = deque()
        self._expected: deque[Mapping[str, Any]] = deque()
        self.trials: list[ShadowTrial] = []
        self._checkpoints: dict[tuple[int, int, float], tuple[str, dict[str, Any]]] = {}
        """Path of each reported checkpoint and its result, by trial, attempt and time."""
        self._controller = ShadowController(self.trials, searcher, self._stop)

    # Events

    def replay(self, lines: list[dict[str, Any]]) -> None:
        """Apply the events of a journal.

        Raises:
            ContractError: The scheduler or the searcher decides differently than the journal says.
        """
        self._expected = deque(line for line in lines if "config" in line)
        events = [line for line in lines if "kind" in line]
        self._fill()
        for line in events:
            self._apply(Event(**line))
            self._fill()
        if self._expected:
            raise ContractError(
                f"The journal has a suggestion for trial {self._expected[0]['trial']}, which the "
                "searcher does not make again.",
                fix="Give the searcher and its sampler a fixed seed.",
            )

    def offer(self, config: Mapping[str, Any]) -> int:
        """Add a trial whose configuration was chosen outside; return its number."""
        self._offered.append(dict(config))
        number = len(self.trials) + len(self._offered) - 1
        if number + 1 >= self._num_samples:
            self._fill()
        return number

    def start(self) -> None:
        """Let the first trials run."""
        self._fill()

    def receive(self, event: Event) -> None:
        """Take in an event and apply all that can be applied now."""
        self._arrived.setdefault(event.trial, deque()).append(event)
        self._arrival_order.append(event.trial)
        self._advance()

    def running(self) -> tuple[ShadowTrial, ...]:
        """Return the trials that run by the virtual clock, the next due first."""
        busy = [(s.clock, i, s.trial) for i, s in enumerate(self._slots) if s.trial is not None]
        return tuple(trial for _, _, trial in sorted(busy, key=lambda entry: entry[:2]))

    def is_waiting(self, trial: int) -> bool:
        """Return whether an event of the trial has arrived and is not applied yet."""
        return bool(self._arrived.get(trial))

    def is_exhausted(self) -> bool:
        """Return whether the searcher has no further configuration."""
        return self._exhausted

    def latest_checkpoint(self, trial: int) -> tuple[str, dict[str, Any]]:
        """Return the path that a trial continues from, and the result that came with it.

        The path is empty where the trial starts from nothing.
        """
        shadow = self.trials[trial]
        own = [key for key in self._checkpoints if key[:2] == (trial, shadow.attempt)]
        if own:
            return self._checkpoints[max(own)]
        if shadow.start is None:
            return "", {}
        start = (shadow.start.trial, shadow.start.attempt, shadow.start.time)
        return self._checkpoints.get(start, ("", {}))

    def is_finished(self) -> bool:
        """Return whether no trial will run again."""
        return not self.running() and all(trial.is_finished() for trial in self.trials)

    # Order

    def _advance(self) -> None:
        while (event := self._next_event()) is not None:
            self._record(_line(event))
            self._apply(event)
            self._fill()

    def _next_event(self) -> Event | None:
        running = self.running()
        if not running:
            return None
        if self._ordered:
            queue = self._arrived.get(running[0].number)
            return queue.popleft() if queue else None
        runs = {trial.number for trial in running}
        for number in list(self._arrival_order):
            self._arrival_order.remove(number)
            queue = self._arrived.get(number)
            if number in runs and queue:
                return queue.popleft()
        return None

    def _fill(self) -> None:
        """Give each free slot the trial that the scheduler chooses."""
        for slot in sorted(self._slots, key=lambda slot: slot.clock):
            if slot.trial is not None:
                continue
            if not any(trial.status == Trial.PENDING for trial in self.trials):
                self._suggest()
            with self._drawing():
                chosen = self._scheduler.choose_trial_to_run(self._controller)
            if chosen is None:
                return
            chosen.status = Trial.RUNNING
            slot.trial, slot.clock = chosen, max(slot.clock, self._now)

    def _suggest(self) -> None:
        number = len(self.trials)
        if self._exhausted or number >= self._num_samples:
            return
        if self._searcher is None:
            if not self._offered:
                return
            config = self._offered.popleft()
        else:
            with self._drawing():
                suggested: Any = self._searcher.suggest(f"{number:05d}")
            if suggested is None:
                return
            if suggested == Searcher.FINISHED:
                self._exhausted = True
                return
            config = dict(suggested)
        self._require_repeated(number, config)
        trial = ShadowTrial(
            number=number, config=config, folder=self._folder, evaluated_params=dict(config)
        )
        self.trials.append(trial)
        with self._drawing():
            self._scheduler.on_trial_add(self._controller, trial)

    def _require_repeated(self, number: int, config: Mapping[str, Any]) -> None:
        line = {"trial": number, "config": config}
        if not self._expected:
            self._record(line)
            return
        expected = self._expected.popleft()
        if _plain(config) != expected["config"] or number != expected["trial"]:
            raise ContractError(
                f"The searcher suggests {_plain(config)} for trial {number}, the journal has "
                f"{expected['config']} for trial {expected['trial']}.",
                cause="The searcher draws from a generator without a fixed seed.",
                fix="Give the searcher and its sampler a fixed seed.",
            )

    # Decisions

    def _apply(self, event: Event) -> None:
        trial = self.trials[event.trial]
        slot = next(slot for slot in self._slots if slot.trial is trial)
        slot.clock += 1
        self._now = max(self._now, slot.clock)
        result = dict(event.result)
        if result:
            # Tune's own counter starts at 1 again whenever a trial is restored.
            result["training_iteration"] = result[self._time_attr]
            trial.time, trial.last_result = result[self._time_attr], result
        if event.checkpoint:
            key = (trial.number, trial.attempt, trial.time)
            self._checkpoints[key] = (event.checkpoint, dict(result))
        if event.kind == "result" and not math.isfinite(result[self._metric]):
            shown = f"{self._metric} is {result[self._metric]} at {self._time_attr} {trial.time}."
            self._end(trial, Trial.ERROR, shown)
        elif event.kind == "error":
            self._end(trial, Trial.ERROR, event.reason)
        elif event.kind == "complete":
            self._end(trial, Trial.TERMINATED, event.reason)
        else:
            self._decide(trial, result)
        for slot in self._slots:
            if slot.trial is not None and slot.trial.status != Trial.RUNNING:
                slot.trial = None

    def _decide(self, trial: ShadowTrial, result: dict[str, Any]) -> None:
        with self._drawing():
            decision = self._scheduler.on_trial_result(self._controller, trial, result)
        if decision == TrialScheduler.STOP:
            self._end(trial, Trial.TERMINATED, f"stopped at {self._time_attr} {trial.time}")
            return
        if decision == TrialScheduler.PAUSE and trial.status == Trial.RUNNING:
            trial.status = Trial.PAUSED
        if self._searcher is not None:
            with self._drawing():
                self._searcher.on_trial_result(trial.trial_id, result)

    def _stop(self, trial: ShadowTrial) -> None:
        """End a trial that the scheduler asked to end while another one reported."""
        self._end(trial, Trial.TERMINATED, f"stopped at {self._time_attr} {trial.time}")

    def _end(self, trial: ShadowTrial, status: str, reason: str) -> None:
        if trial.is_finished():
            return
        ran, trial.reason = trial.status == Trial.RUNNING, reason
        failed = status == Trial.ERROR
        with self._drawing():
            if failed:
                self._scheduler.on_trial_error(self._controller, trial)
            elif ran:
                self._scheduler.on_trial_complete(self._controller, trial, trial.last_result)
            else:
                self._scheduler.on_trial_remove(self._controller, trial)
        trial.status = status
        if self._searcher is not None:
            result = trial.last_result if ran and not failed else None
            with self._drawing():
                self._searcher.on_trial_complete(trial.trial_id, result=result, error=failed)

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Seed the global generators, from which schedulers of Tune draw, for one call."""
        self._draws += 1
        seed = derive_seed(self._seed, f"tune_{self._draws}")
        own, own_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - the generator that ASHA draws from
        try:
            yield
        finally:
            random.setstate(own)
            np.random.set_state(own_numpy)  # noqa: NPY002


def _line(event: Event) -> dict[str, Any]:
    return {
        "trial": event.trial,
        "attempt": event.attempt,
        "kind": event.kind,
        "result": dict(event.result),
        "reason": event.reason,
        "checkpoint": event.checkpoint,
    }


def _plain(config: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(config, default=str))
