"""Connects a study to a running ``Tuner``: passes on events and applies the study's decisions."""

from collections.abc import Callable, Mapping
from numbers import Number
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from sluice.base.errors import SettingsError, TrialFailed
from sluice.tuning.resumable import tune_trials
from sluice.tuning.resumable.events import StudyEvent
from sluice.tuning.resumable.requirements import require_checkpoint, require_result
from sluice.tuning.resumable.study import Study
from sluice.tuning.resumable.workers import WorkerAvailability


class StudyDriver:
    """Binds each trial of Tune to one trial of a study, identified by its number.

    Args:
        study: The study, after the replay of its journal.
        metric: Name of the metric.
        time_attr: Name of the reported counter that increases with training.
        stop_on_error: Whether to raise ``TrialFailed`` when Tune no longer retries a failed trial.
            Otherwise the failure is recorded, and the study continues.
        max_workers: Maximum number of workers; None for as many as the cluster has.
        on_applied: Called after every event that the study applied.
    """

    def __init__(
        self,
        study: Study,
        *,
        metric: str,
        time_attr: str,
        stop_on_error: bool,
        max_workers: int | None,
        on_applied: Callable[[StudyEvent], None],
    ) -> None:
        self._study, self._metric, self._time_attr = study, metric, time_attr
        self._stop_on_error, self._on_applied = stop_on_error, on_applied
        self._number_by_id: dict[str, int] = {}
        """Number of the study's trial by the id of Tune's trial."""
        self._trial_by_number: dict[int, Any] = {}
        """Tune's trial by number. The type is Any because Tune's methods are untyped."""

        self._attempt_by_number: dict[int, int] = {}
        """Number of the attempt that the worker of each trial runs, by number of the trial."""
        self._last_checkpoint_by_number: dict[int, str] = {}
        """Path of the last checkpoint that the workers of each trial reported, by number of the
        trial."""
        self._waiting_numbers: dict[int, None] = {}
        """Numbers of trials that keep their worker while their last report is pending, that is, not
        applied yet. The dictionary is used as an ordered set."""
        self._numbers_without_worker: dict[int, None] = {}
        """Numbers of trials that run according to the study, but may have no worker. The dictionary
        is used as an ordered set."""
        self._availability = WorkerAvailability(max_workers)
        self._has_started = False
        study.pop_changed()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Bind a new Tune trial to the next trial of the study, and return its configuration."""
        number = len(self._number_by_id)
        if number >= len(self._study.trials) and not self._study.suggest():
            return Searcher.FINISHED if self._study.is_exhausted() else None
        self._number_by_id[trial_id] = number
        return dict(self._study.trials[number].config)

    def on_add(self, controller: Any, trial: Any) -> None:
        """Set the configuration, checkpoint and status of a Tune trial to those of the study."""
        if trial.trial_id not in self._number_by_id:
            number = len(self._number_by_id)
            if number >= self._study.num_known_trials():
                self._study.enqueue(trial.config)
            self._number_by_id[trial.trial_id] = number
        number = self._number_by_id[trial.trial_id]
        if number in self._trial_by_number:
            self._requeue(controller, number)
            return
        if not tune_trials.is_function(trial):
            raise SettingsError(
                f"The trainable must be a function, but {trial.trainable_name} is a class.",
                fix="Pass a function that calls tune.report(metrics, checkpoint=...).",
            )
        self._trial_by_number[number] = trial
        if number < len(self._study.trials):
            self._restore(number)
        elif trial.status == Trial.PENDING:
            trial.set_status(Trial.PAUSED)

    def on_result(self, controller: Any, trial: Any, result: Mapping[str, Any]) -> str:
        """Pass a result to the study, and return what Tune's trial does next."""
        number = self._number_by_id[trial.trial_id]
        self._record_start(number)
        study_trial = self._study.trials[number]
        require_result(trial, result, self._metric, self._time_attr)
        # Ignore a result that the study contains already. A worker that resumed from an older
        # checkpoint repeats such results.
        is_new = (
            self._attempt_by_number.get(number) == study_trial.attempt
            and result[self._time_attr] > study_trial.time
            and not self._study.has_pending_event(number)
        )
        if is_new and study_trial.status == Trial.RUNNING:
            checkpoint = self._record_checkpoint(number, result)
            reported_scalars = scalars(result)
            require_checkpoint(trial, checkpoint, reported_scalars, self._metric, self._time_attr)
            event = StudyEvent(
                trial=number,
                attempt=study_trial.attempt,
                result=reported_scalars,
                checkpoint=checkpoint,
            )
            self._receive(event)
        self._apply_decisions(controller, skipped_number=number)
        if study_trial.is_finished():
            return TrialScheduler.STOP
        if self._study.has_pending_event(number):
            self._waiting_numbers[number] = None
            return TrialScheduler.NOOP
        if (
            study_trial.status == Trial.RUNNING
            and self._attempt_by_number[number] == study_trial.attempt
        ):
            return TrialScheduler.CONTINUE
        self._release_worker(controller, number)
        return TrialScheduler.NOOP

    def on_end(self, controller: Any, trial: Any, result: Mapping[str, Any]) -> None:
        """Pass the end of a trial to the study.

        The trial's function has returned, or a stopping criterion of Tune has ended the trial.
        """
        number = self._number_by_id[trial.trial_id]
        study_trial = self._study.trials[number]
        self._waiting_numbers.pop(number, None)
        if study_trial.is_finished() or self._study.has_pending_event(number):
            return
        self._record_start(number)
        event_fields: dict[str, Any] = {"trial": number, "attempt": study_trial.attempt}
        if result.get(self._time_attr, 0) > study_trial.time:
            checkpoint = self._record_checkpoint(number, result)
            event_fields |= {"result": scalars(result), "checkpoint": checkpoint}
        if study_trial.last_result or "result" in event_fields:
            self._receive(StudyEvent(kind="complete", **event_fields))
        else:
            reason = "The trainable returned without a report."
            self._receive(StudyEvent(kind="error", reason=reason, **event_fields))
        self._apply_decisions(controller, skipped_number=number)

    def on_error(self, controller: Any, trial: Any) -> None:
        """Pass the final failure of a trial to the study.

        Tune calls this method only when it no longer retries the trial.
        """
        number = self._number_by_id[trial.trial_id]
        self._waiting_numbers.pop(number, None)
        study_trial = self._study.trials[number]
        if trial.status == Trial.ERROR or study_trial.is_finished():
            return
        error, reason = tune_trials.error_of(trial)
        if self._stop_on_error:
            raise TrialFailed(
                f"Trial {number} failed, and Tune does not retry it: {reason}",
                fix="Fix the cause and run the program again: the trial is retried.",
                number=number,
                config=dict(study_trial.config),
                error=error,
            ) from error
        self._record_start(number)
        event = StudyEvent(trial=number, attempt=study_trial.attempt, kind="error", reason=reason)
        self._receive(event)
        self._apply_decisions(controller, skipped_number=number)

    def choose(self, controller: Any) -> Any:
        """Return the Tune trial that should get a worker next; None for no trial."""
        if not self._has_started and tune_trials.has_all_trials(controller):
            self._has_started = True
            self._study.start()
        tune_trials.allow_parallel_starts(controller)
        tune_trials.retry_failed_resets(controller)
        self._update_started_trials(controller)
        self._apply_decisions(controller)
        numbers_needing_worker = [
            n for n in self._numbers_without_worker if self._needs_worker(controller, n)
        ]
        if not numbers_needing_worker:
            return None if self._availability.is_at_limit(controller) else self._next_trial()
        # If all workers are in use, release the worker of a trial whose report is pending, so that
        # a trial without a worker can run.
        if self._waiting_numbers and self._availability.is_full(controller):
            self._release_worker(controller, max(self._waiting_numbers, key=self._study.sort_key))
        if self._availability.is_at_limit(controller):
            return None
        return self._trial_by_number[min(numbers_needing_worker, key=self._study.sort_key)]

    def _next_trial(self) -> Any:
        """Return the Tune trial that the study starts next; None if it starts no trial."""
        number = self._study.next_to_start()
        trial = None if number is None else self._trial_by_number.get(number)
        if number is None or trial is None or trial.status not in (Trial.PENDING, Trial.PAUSED):
            return None
        if self._attempt_by_number.get(number) != self._study.trials[number].attempt:
            self._prepare_start(number)
        return trial

    def _update_started_trials(self, controller: Any) -> None:
        """Remove trials that now have a worker from the trials without a worker.

        If the trial that the study starts next now has a worker, its start is recorded.
        """
        for number in [
            n for n in self._numbers_without_worker if not self._needs_worker(controller, n)
        ]:
            del self._numbers_without_worker[number]
        next_number = self._study.next_to_start()
        if next_number is None:
            return
        trial = self._trial_by_number.get(next_number)
        if trial is not None and tune_trials.has_worker(controller, trial):
            self._record_start(next_number)

    def _record_start(self, number: int) -> None:
        """Record the start of a trial, if it is the trial that the study starts next."""
        if self._study.next_to_start() == number:
            self._receive(StudyEvent(trial=number, kind="start"))

    def _needs_worker(self, controller: Any, number: int) -> bool:
        return (
            self._study.trials[number].status == Trial.RUNNING
            and self._trial_by_number[number].status in (Trial.PENDING, Trial.PAUSED)
            and not self._study.has_pending_event(number)
            and not tune_trials.has_worker(controller, self._trial_by_number[number])
        )

    def _receive(self, event: StudyEvent) -> None:
        for applied_event in self._study.receive(event):
            self._on_applied(applied_event)

    def _apply_decisions(self, controller: Any, skipped_number: int | None = None) -> None:
        """Apply the study's new decisions to Tune's trials: continue, pause or stop them.

        Args:
            controller: Tune's controller.
            skipped_number: Number of the trial that Tune is processing. The caller returns the
                decision about this trial to Tune.
        """
        for number in self._study.pop_changed():
            trial = self._trial_by_number.get(number)
            if number == skipped_number or trial is None or self._study.has_pending_event(number):
                continue
            if trial.is_finished():
                continue
            study_trial = self._study.trials[number]
            if study_trial.is_finished():
                self._waiting_numbers.pop(number, None)
                tune_trials.stop(controller, trial)
                continue
            must_restart = (
                self._attempt_by_number.get(number) != study_trial.attempt
                or study_trial.status != Trial.RUNNING
            )
            if number in self._waiting_numbers:
                if must_restart:
                    self._release_worker(controller, number)
                else:
                    del self._waiting_numbers[number]
                    tune_trials.resume_trial(controller, trial)
            elif (
                must_restart and trial.status == Trial.RUNNING and number in self._attempt_by_number
            ):
                self._release_worker(controller, number)
            elif trial.status == Trial.PAUSED:
                # Let the trial start from the checkpoint of its last report. The trial may have
                # lost its worker while the report was pending.
                self._prepare_start(number)
            self._numbers_without_worker[number] = None

    def _release_worker(self, controller: Any, number: int) -> None:
        """Release the worker of a trial, and prepare the next start of the trial."""
        self._waiting_numbers.pop(number, None)
        tune_trials.pause(controller, self._trial_by_number[number])
        self._prepare_start(number)

    def _requeue(self, controller: Any, number: int) -> None:
        """Prepare a trial whose worker was lost for its next start."""
        self._waiting_numbers.pop(number, None)
        trial, study_trial = self._trial_by_number[number], self._study.trials[number]
        self._prepare_start(number)
        if study_trial.is_finished():
            tune_trials.stop(controller, trial)
        elif self._availability.is_limited or not self._is_running(number):
            tune_trials.set_status(controller, trial, Trial.PAUSED)

    def _restore(self, number: int) -> None:
        """Set the state of a new Tune trial to that of its trial in the replayed study."""
        trial, study_trial = self._trial_by_number[number], self._study.trials[number]
        if checkpoint := self._study.last_own_checkpoint(number):
            tune_trials.reuse_folder(trial, checkpoint)
            self._last_checkpoint_by_number[number] = checkpoint
        self._prepare_start(number)
        if study_trial.last_result:
            trial.update_last_result(dict(study_trial.last_result))
        if study_trial.is_finished():
            trial.set_status(study_trial.status)
        elif self._availability.is_limited or not self._is_running(number):
            # Tune starts every pending trial, but starts a paused trial only if ``choose`` returns
            # it.
            trial.set_status(Trial.PAUSED)

    def _is_running(self, number: int) -> bool:
        """Return whether a trial runs according to the study, and has no pending report."""
        is_running = self._study.trials[number].status == Trial.RUNNING
        return is_running and not self._study.has_pending_event(number)

    def _prepare_start(self, number: int) -> None:
        """Set the configuration and the checkpoint with which a trial without a worker starts."""
        trial, study_trial = self._trial_by_number[number], self._study.trials[number]
        trial.set_config({**trial.config, **study_trial.config})
        path, result = self._study.latest_checkpoint(number)
        tune_trials.set_checkpoint(trial, path, result)
        tune_trials.skip_written_checkpoints(trial, self._last_checkpoint_by_number.get(number, ""))
        self._attempt_by_number[number] = study_trial.attempt
        self._numbers_without_worker[number] = None

    def _record_checkpoint(self, number: int, result: Mapping[str, Any]) -> str:
        """Return the path of the checkpoint of a result, and store it as the trial's last one."""
        path = tune_trials.reported_checkpoint(self._trial_by_number[number], dict(result))
        self._last_checkpoint_by_number[number] = path or self._last_checkpoint_by_number.get(
            number, ""
        )
        return path


def scalars(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scalar values of a result that do not depend on the machine or the attempt."""
    return {
        key: value.item() if hasattr(value, "item") else value
        for key, value in result.items()
        if isinstance(value, Number | str | bool)
        and key not in TUNE_FIELDS
        and not key.startswith("config/")  # Tune adds the configuration to each result
    }


TUNE_FIELDS = frozenset(
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
"""Fields that Tune adds to every result. Their values depend on the machine or on the attempt, so
they must not affect decisions."""
