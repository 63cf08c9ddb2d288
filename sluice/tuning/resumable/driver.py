"""Makes the trials of a running ``Tuner`` do what the study decides."""

import time
from collections.abc import Mapping
from numbers import Number
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from sluice.tuning.resumable import tune_trials
from sluice.tuning.resumable.study import Event, Study

_MAX_HOLD_S = 1.0
"""Time that a trial without a worker waits before one that is held gives its worker up [s]."""


class StudyDriver:
    """Binds Tune's trials to the trials of a study.

    Args:
        study: The study, replayed and started.
        time_attr: Name of the counter that grows with training.
    """

    def __init__(self, study: Study, time_attr: str) -> None:
        self._study, self._time_attr = study, time_attr
        self._number: dict[str, int] = {}
        self._trial: dict[int, Any] = {}
        """Tune's trials, whose methods have no types."""

        self._attempt: dict[int, int] = {}
        """Attempt that the trial's worker runs."""
        self._held: dict[int, None] = {}
        self._waiting_since: float | None = None

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the configuration of the next trial that has none of Tune's yet."""
        number = len(self._number)
        if number >= len(self._study.trials):
            return Searcher.FINISHED if self._study.is_exhausted() else None
        self._number[trial_id] = number
        return dict(self._study.trials[number].config)

    def on_add(self, trial: Any) -> None:
        """Give a trial the configuration, checkpoint and status that the study has for it."""
        if trial.trial_id not in self._number:
            self._number[trial.trial_id] = self._study.offer(trial.config)
        number = self._number[trial.trial_id]
        self._trial[number] = trial
        self._held.pop(number, None)
        if number < len(self._study.trials):
            self._restore(number)
        elif trial.status == Trial.PENDING:
            trial.set_status(Trial.PAUSED)

    def on_result(self, controller: Any, trial: Any, result: Mapping[str, Any]) -> str:
        """Report a result to the study and return what the trial does next."""
        number = self._number[trial.trial_id]
        shadow = self._study.trials[number]
        is_new = self._attempt.get(number) == shadow.attempt and (
            result[self._time_attr] > shadow.time and not self._study.is_waiting(number)
        )
        if is_new and shadow.status == Trial.RUNNING:
            self._study.receive(self._event(number, "result", result))
        self._enact(controller, besides=number)
        if shadow.is_finished():
            return TrialScheduler.STOP
        if self._study.is_waiting(number):
            self._held[number] = None
            return TrialScheduler.NOOP
        if shadow.status == Trial.RUNNING and self._attempt[number] == shadow.attempt:
            return TrialScheduler.CONTINUE
        self._release(controller, number)
        return TrialScheduler.NOOP

    def on_end(self, controller: Any, trial: Any, result: Mapping[str, Any]) -> None:
        """Report that a trial ended by itself."""
        number = self._number[trial.trial_id]
        shadow = self._study.trials[number]
        if not shadow.is_finished() and not self._study.is_waiting(number):
            self._study.receive(self._event(number, "complete", result))
            self._enact(controller, besides=number)

    def on_error(self, controller: Any, trial: Any) -> None:
        """Report that a trial failed for good; one that Tune starts again is no failure yet."""
        number = self._number[trial.trial_id]
        self._held.pop(number, None)
        shadow = self._study.trials[number]
        if trial.status == Trial.ERROR or shadow.is_finished():
            return
        error = trial.get_error()
        event = Event(
            trial=number,
            attempt=shadow.attempt,
            kind="error",
            result={},
            reason=str(error).strip().rsplit("\n", 1)[-1],
        )
        self._study.receive(event)
        self._enact(controller, besides=number)

    def choose(self, controller: Any) -> Any:
        """Return the trial that should get a worker next."""
        self._enact(controller)
        wanted = [
            self._trial[shadow.number]
            for shadow in self._study.running()
            if shadow.number in self._trial
            and self._trial[shadow.number].status in (Trial.PENDING, Trial.PAUSED)
            and not self._study.is_waiting(shadow.number)
        ]
        if not wanted:
            self._waiting_since = None
            return None
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if self._held and now - self._waiting_since > _MAX_HOLD_S:
            order = [shadow.number for shadow in self._study.running()]
            last = max(self._held, key=lambda number: order.index(number))
            self._release(controller, last)
            self._waiting_since = None
        return wanted[0]

    def _event(self, number: int, kind: Any, result: Mapping[str, Any]) -> Event:
        trial = self._trial[number]
        return Event(
            trial=number,
            attempt=self._study.trials[number].attempt,
            kind=kind,
            result=_scalars(result),
            checkpoint=tune_trials.reported_checkpoint(trial, dict(result)),
        )

    def _enact(self, controller: Any, besides: int | None = None) -> None:
        """Continue, pause and stop trials as the study decided."""
        for number, trial in self._trial.items():
            if number == besides or number >= len(self._study.trials):
                continue
            shadow = self._study.trials[number]
            if self._study.is_waiting(number) or trial.is_finished():
                continue
            if shadow.is_finished():
                self._held.pop(number, None)
                tune_trials.stop(controller, trial)
                continue
            moved = self._attempt.get(number) != shadow.attempt or shadow.status != Trial.RUNNING
            if number in self._held:
                if moved:
                    self._release(controller, number)
                else:
                    del self._held[number]
                    tune_trials.continue_held(controller, trial)
            elif moved and trial.status == Trial.RUNNING and number in self._attempt:
                self._release(controller, number)
            elif moved and trial.status == Trial.PAUSED:
                self._prepare(number)

    def _release(self, controller: Any, number: int) -> None:
        """Take a trial's worker away and prepare what it starts from."""
        self._held.pop(number, None)
        tune_trials.pause(controller, self._trial[number])
        self._prepare(number)

    def _restore(self, number: int) -> None:
        trial, shadow = self._trial[number], self._study.trials[number]
        path, _ = self._study.latest_checkpoint(number)
        if path:
            tune_trials.keep_folder(trial, path)
        self._prepare(number)
        if shadow.last_result:
            trial.update_last_result(dict(shadow.last_result))
        if shadow.is_finished():
            trial.set_status(shadow.status)
        elif shadow.status != Trial.RUNNING or self._study.is_waiting(number):
            trial.set_status(Trial.PAUSED)

    def _prepare(self, number: int) -> None:
        """Set configuration and checkpoint of a trial that has no worker."""
        trial, shadow = self._trial[number], self._study.trials[number]
        trial.set_config({**trial.config, **shadow.config})
        path, result = self._study.latest_checkpoint(number)
        tune_trials.set_checkpoint(trial, path, result)
        self._attempt[number] = shadow.attempt


def _scalars(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reported numbers and texts that do not depend on the machine."""
    return {
        key: value.item() if hasattr(value, "item") else value
        for key, value in result.items()
        if isinstance(value, Number | str | bool) and key not in _OF_THE_MACHINE
    }


_OF_THE_MACHINE = frozenset(
    {
        "date",
        "done",
        "experiment_tag",
        "hostname",
        "iterations_since_restore",
        "node_ip",
        "pid",
        "time_since_restore",
        "time_this_iter_s",
        "time_total_s",
        "timestamp",
        "checkpoint_dir_name",
        "trial_id",
        "should_checkpoint",
        "training_iteration",
    }
)
