"""Makes the trials of a running ``Tuner`` do what the study decides."""

from collections.abc import Callable, Mapping
from numbers import Number
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from sluice.base.errors import SettingsError, TrialFailed
from sluice.tuning.resumable import tune_trials
from sluice.tuning.resumable.events import Event
from sluice.tuning.resumable.requirements import require_checkpoint, require_result
from sluice.tuning.resumable.study import Study
from sluice.tuning.resumable.workers import FreeWorkers


class StudyDriver:
    """Binds Tune's trials to the trials of a study.

    Args:
        study: The study, replayed.
        metric: Name of the metric.
        time_attr: Name of the counter that grows with training.
        stop_on_error: Raise ``TrialFailed`` where Tune gives a trial up, and write nothing.
        workers: Trials that have a worker at a time; None for as many as there are.
        applied: Called after every event that was applied.
    """

    def __init__(
        self,
        study: Study,
        *,
        metric: str,
        time_attr: str,
        stop_on_error: bool,
        workers: int | None,
        applied: Callable[[Event], None],
    ) -> None:
        self._study, self._metric, self._time_attr = study, metric, time_attr
        self._stop_on_error, self._applied = stop_on_error, applied
        self._number: dict[str, int] = {}
        self._trial: dict[int, Any] = {}
        """Tune's trials, whose methods have no types."""

        self._attempt: dict[int, int] = {}
        """Attempt that the trial's worker runs."""
        self._written: dict[int, str] = {}
        """Path of the last checkpoint that the trial's workers reported."""
        self._held: dict[int, None] = {}
        """Trials that keep their worker until their last report is due."""
        self._without: dict[int, None] = {}
        """Trials that run by the study and may have no worker."""
        self._free = FreeWorkers(workers)
        self._is_complete = False
        study.take_changed()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the configuration of the next trial that has none of Tune's yet."""
        number = len(self._number)
        if number >= len(self._study.trials) and not self._study.suggest():
            return Searcher.FINISHED if self._study.is_exhausted() else None
        self._number[trial_id] = number
        return dict(self._study.trials[number].config)

    def on_add(self, controller: Any, trial: Any) -> None:
        """Give a trial the configuration, checkpoint and status that the study has for it."""
        known = trial.trial_id in self._number
        if not known:
            number = len(self._number)
            if number >= self._study.num_known():
                self._study.offer(trial.config)
            self._number[trial.trial_id] = number
        number = self._number[trial.trial_id]
        if number in self._trial:
            self._requeue(controller, number)
            return
        if not tune_trials.is_function(trial):
            raise SettingsError(
                f"A function as trainable is required, {trial.trainable_name} is a class.",
                fix="Pass a function that calls tune.report(metrics, checkpoint=...).",
            )
        self._trial[number] = trial
        if number < len(self._study.trials):
            self._restore(number)
        elif trial.status == Trial.PENDING:
            trial.set_status(Trial.PAUSED)

    def on_result(self, controller: Any, trial: Any, result: Mapping[str, Any]) -> str:
        """Report a result to the study and return what the trial does next."""
        number = self._number[trial.trial_id]
        self._start(number)
        shadow = self._study.trials[number]
        require_result(trial, result, self._metric, self._time_attr)
        is_new = self._attempt.get(number) == shadow.attempt and (
            result[self._time_attr] > shadow.time and not self._study.is_waiting(number)
        )
        if is_new and shadow.status == Trial.RUNNING:
            checkpoint = self._reported_checkpoint(number, result)
            reported = scalars(result)
            require_checkpoint(trial, checkpoint, reported, self._metric, self._time_attr)
            event = Event(
                trial=number, attempt=shadow.attempt, result=reported, checkpoint=checkpoint
            )
            self._receive(event)
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
        """Report that a trial ended by itself, or by a rule of Tune for its last result."""
        number = self._number[trial.trial_id]
        shadow = self._study.trials[number]
        self._held.pop(number, None)
        if shadow.is_finished() or self._study.is_waiting(number):
            return
        self._start(number)
        common: dict[str, Any] = {"trial": number, "attempt": shadow.attempt}
        if result.get(self._time_attr, 0) > shadow.time:
            checkpoint = self._reported_checkpoint(number, result)
            common |= {"result": scalars(result), "checkpoint": checkpoint}
        if shadow.last_result or "result" in common:
            self._receive(Event(kind="complete", **common))
        else:
            reason = "The trainable returned without a report."
            self._receive(Event(kind="error", reason=reason, **common))
        self._enact(controller, besides=number)

    def on_error(self, controller: Any, trial: Any) -> None:
        """Report that a trial failed for good; one that Tune starts again is no failure yet."""
        number = self._number[trial.trial_id]
        self._held.pop(number, None)
        shadow = self._study.trials[number]
        if trial.status == Trial.ERROR or shadow.is_finished():
            return
        error, reason = tune_trials.error_of(trial)
        if self._stop_on_error:
            raise TrialFailed(
                f"Trial {number} failed, and Tune gave it up: {reason}",
                fix="See to the cause and run the program again: the trial is tried anew.",
                number=number,
                config=dict(shadow.config),
                error=error,
            ) from error
        self._start(number)
        event = Event(trial=number, attempt=shadow.attempt, kind="error", reason=reason)
        self._receive(event)
        self._enact(controller, besides=number)

    def choose(self, controller: Any) -> Any:
        """Return the trial that should get a worker next."""
        if not self._is_complete and tune_trials.has_all_trials(controller):
            self._is_complete = True
            self._study.start()
        tune_trials.widen(controller)
        self._see_starts(controller)
        self._enact(controller)
        wanted = [n for n in self._without if self._wants_worker(controller, n)]
        if not wanted:
            return None if self._free.is_at_limit(controller) else self._next_trial()
        if self._held and self._free.is_full(controller):
            self._release(controller, max(self._held, key=self._study.position))
        if self._free.is_at_limit(controller):
            return None
        return self._trial[min(wanted, key=self._study.position)]

    def _next_trial(self) -> Any:
        """Return the trial that the study wants to start; None without one."""
        choice = self._study.choice()
        trial = None if choice is None else self._trial.get(choice)
        if choice is None or trial is None or trial.status not in (Trial.PENDING, Trial.PAUSED):
            return None
        if self._attempt.get(choice) != self._study.trials[choice].attempt:
            self._prepare(choice)
        return trial

    def _see_starts(self, controller: Any) -> None:
        """Tell the study which trial got its worker."""
        for number in [n for n in self._without if not self._wants_worker(controller, n)]:
            del self._without[number]
        choice = self._study.choice()
        trial = None if choice is None else self._trial.get(choice)
        if choice is not None and trial is not None and tune_trials.has_worker(controller, trial):
            self._start(choice)

    def _start(self, number: int) -> None:
        """Tell the study that a trial runs, if it chose it."""
        if self._study.choice() == number:
            self._receive(Event(trial=number, kind="start"))

    def _wants_worker(self, controller: Any, number: int) -> bool:
        return (
            self._study.trials[number].status == Trial.RUNNING
            and self._trial[number].status in (Trial.PENDING, Trial.PAUSED)
            and not self._study.is_waiting(number)
            and not tune_trials.has_worker(controller, self._trial[number])
        )

    def _receive(self, event: Event) -> None:
        for applied in self._study.receive(event):
            self._applied(applied)

    def _enact(self, controller: Any, besides: int | None = None) -> None:
        """Continue, pause and stop the trials about which the study decided something."""
        for number in self._study.take_changed():
            trial = self._trial.get(number)
            if number == besides or trial is None or self._study.is_waiting(number):
                continue
            if trial.is_finished():
                continue
            shadow = self._study.trials[number]
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
            elif trial.status == Trial.PAUSED:
                # Also where it made way while its report waited: the checkpoint of it counts now.
                self._prepare(number)
            self._without[number] = None

    def _release(self, controller: Any, number: int) -> None:
        """Take a trial's worker away and prepare what it starts from."""
        self._held.pop(number, None)
        tune_trials.pause(controller, self._trial[number])
        self._prepare(number)

    def _requeue(self, controller: Any, number: int) -> None:
        """Take back a trial whose worker was lost."""
        self._held.pop(number, None)
        trial, shadow = self._trial[number], self._study.trials[number]
        self._prepare(number)
        if shadow.is_finished():
            tune_trials.stop(controller, trial)
        elif self._free.is_limited or not self._runs(number):
            tune_trials.set_status(controller, trial, Trial.PAUSED)

    def _restore(self, number: int) -> None:
        trial, shadow = self._trial[number], self._study.trials[number]
        if own := self._study.own_checkpoint(number):
            tune_trials.keep_folder(trial, own)
            self._written[number] = own
        self._prepare(number)
        if shadow.last_result:
            trial.update_last_result(dict(shadow.last_result))
        if shadow.is_finished():
            trial.set_status(shadow.status)
        elif self._free.is_limited or not self._runs(number):
            # Tune starts every pending trial; of those that are paused, only the chosen one.
            trial.set_status(Trial.PAUSED)

    def _runs(self, number: int) -> bool:
        running = self._study.trials[number].status == Trial.RUNNING
        return running and not self._study.is_waiting(number)

    def _prepare(self, number: int) -> None:
        """Set configuration and checkpoint of a trial that has no worker."""
        trial, shadow = self._trial[number], self._study.trials[number]
        trial.set_config({**trial.config, **shadow.config})
        path, result = self._study.latest_checkpoint(number)
        tune_trials.set_checkpoint(trial, path, result)
        tune_trials.skip_written(trial, self._written.get(number, ""))
        self._attempt[number] = shadow.attempt
        self._without[number] = None

    def _reported_checkpoint(self, number: int, result: Mapping[str, Any]) -> str:
        path = tune_trials.reported_checkpoint(self._trial[number], dict(result))
        self._written[number] = path or self._written.get(number, "")
        return path


def scalars(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reported numbers and texts that do not depend on the machine."""
    return {
        key: value.item() if hasattr(value, "item") else value
        for key, value in result.items()
        if isinstance(value, Number | str | bool)
        and key not in _OF_THE_MACHINE
        and not key.startswith("config/")  # Tune adds the configuration to each result
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
