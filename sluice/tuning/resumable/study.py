"""The study: a scheduler and a searcher decide about trials; its journal reproduces the decisions.

The scheduler and the searcher of Ray Tune get proxies in place of Tune's trials. Events are applied
one after another, and each is written to the journal before it is applied. Replaying the journal
into new objects gives the same suggestions, early stops and copies of weights.

Two subclasses define the order of events, and when trials are suggested: ``OrderedStudy`` uses a
virtual clock, ``ArrivalStudy`` the order of arrival.
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
from sluice.tuning.resumable.events import CheckpointKey, EventLines, StudyEvent, TrialAttempt
from sluice.tuning.resumable.proxies import ControllerProxy, TrialProxy
from sluice.tuning.resumable.report_store import ReportStore
from sluice.tuning.resumable.seeded_random import SeededRandom

WriteLine = Callable[[Mapping[str, Any], bool], None]
"""Function of (line, sync) that writes a line of the journal. If ``sync`` is true, the function
returns only when the line is on disk."""


class Study(ABC):
    """Applies events to a scheduler and a searcher in a defined order.

    Args:
        scheduler: A new scheduler of Ray Tune.
        searcher: A new searcher; None if configurations are added with ``enqueue``.
        metric: Name of the metric.
        time_attr: Name of the reported counter that increases with training, such as "epoch".
        num_samples: Total number of trials; ignored without a searcher.
        seed: Seed of the random numbers of the scheduler.
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
        record: WriteLine,
    ) -> None:
        self._scheduler: Any = scheduler  # Any, because it gets proxies in place of Tune's types
        self._searcher = searcher
        self._metric, self._time_attr = metric, time_attr
        self._num_samples = math.inf if searcher is None else num_samples
        self._folder = folder
        self._write_line: WriteLine = record
        self._lines, self._reports = EventLines(), ReportStore()
        self._seeded_random = SeededRandom(seed)
        self._live_trials: dict[int, TrialProxy] = {}
        """Trials that have not ended, by number."""
        self._num_by_status: Counter[str] = Counter()
        """Number of trials by status."""
        self._changed_numbers: dict[int, None] = {}
        """Numbers of trials that changed since the last ``pop_changed``, as an ordered set."""
        self._is_exhausted = False
        """Whether the searcher has no more suggestions."""
        self.trials: list[TrialProxy] = []
        """All trials suggested so far; the index is the number of the trial."""
        self._controller = ControllerProxy(
            self.trials, searcher, self._stop, self._reports.reference_checkpoint
        )

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_write_line"}

    def set_recorder(self, record: WriteLine) -> None:
        """Set the function that writes the journal; a snapshot does not contain it."""
        self._write_line = record

    # Inputs

    @abstractmethod
    def replay(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Apply the lines of a journal.

        Raises:
            ContractError: The scheduler or the searcher decides differently than in the journal.
        """

    @abstractmethod
    def enqueue(self, config: Mapping[str, Any]) -> int:
        """Add a trial whose configuration was chosen outside the study; return its number."""

    @abstractmethod
    def receive(self, event: StudyEvent) -> list[StudyEvent]:
        """Receive an event; return the events that were applied, in their order."""

    @abstractmethod
    def suggest(self) -> bool:
        """Create a new trial if possible; return whether a trial was created."""

    @abstractmethod
    def start(self) -> None:
        """Start the first trials. Afterwards, no trial may be enqueued."""

    @abstractmethod
    def next_to_start(self) -> int | None:
        """Return the number of the trial that gets the next worker; None for no trial."""

    # State

    @abstractmethod
    def sort_key(self, number: int) -> tuple[int, int]:
        """Return the key by which running trials are ordered; the smallest key is due first."""

    @abstractmethod
    def has_pending_event(self, number: int) -> bool:
        """Return whether an event of the trial was received and is not applied yet."""

    def is_exhausted(self) -> bool:
        """Return whether there will be no further trial."""
        return self._is_exhausted or len(self.trials) >= self._num_samples

    def is_finished(self) -> bool:
        """Return whether all trials that were suggested so far have ended."""
        return not self._live_trials

    def running_trials(self) -> tuple[TrialProxy, ...]:
        """Return the running trials, in the order of ``sort_key``."""
        trials = [trial for trial in self._live_trials.values() if trial.status == Trial.RUNNING]
        return tuple(sorted(trials, key=lambda trial: self.sort_key(trial.number)))

    def num_known_trials(self) -> int:
        """Return the number of existing and queued trials, which must not be enqueued again."""
        return len(self.trials)

    def latest_checkpoint(self, number: int) -> tuple[str, dict[str, Any]]:
        """Return path and result of the checkpoint from which a trial continues.

        Both are empty if the trial starts from initial weights.
        """
        return self._reports.latest_checkpoint(self.trials[number])

    def last_own_checkpoint(self, number: int) -> str:
        """Return the path of the last checkpoint that the trial itself wrote; "" if none exists."""
        return self._reports.last_written_checkpoint(self.trials[number])

    def attempts_of(self, number: int) -> tuple[TrialAttempt, ...]:
        """Return the attempts that led to a trial's current weights, oldest first.

        The first attempt starts from initial weights. Each later attempt starts from a checkpoint
        of the previous attempt, which may belong to another trial.
        """
        chain = [self.trials[number].attempts[-1]]
        while (start := chain[0].start) is not None:
            chain.insert(0, self.trials[start.trial].attempts[start.attempt])
        return tuple(chain)

    def results_of(self, number: int) -> tuple[dict[str, Any], ...]:
        """Return the results that led to a trial's current weights, oldest first."""
        trial = self.trials[number]
        last = CheckpointKey(number, trial.attempt, trial.time)
        return tuple(dict(r) for r in self._reports.results_along(self.attempts_of(number), last))

    def own_results_of(self, number: int) -> tuple[dict[str, Any], ...]:
        """Return all results that the trial itself reported, including abandoned attempts."""
        attempts = range(len(self.trials[number].attempts))
        return tuple(dict(r) for a in attempts for r in self._reports.results_of_attempt(number, a))

    def checkpoints_needed(self) -> frozenset[str]:
        """Return the paths of checkpoints from which a trial may still start.

        For every trial that has not ended, these are the latest checkpoint and the checkpoint from
        which its attempt started. Checkpoints that the scheduler references are also needed. Other
        checkpoints in the journal may be removed.
        """
        return frozenset(self._reports.checkpoints_needed(self._live_trials.values())) - {""}

    def pop_changed(self) -> list[int]:
        """Return the numbers of the trials that changed since the last call."""
        numbers, self._changed_numbers = list(self._changed_numbers), {}
        return numbers

    # Suggestions

    def _request_config(self) -> dict[str, Any] | None:
        """Return a configuration from the searcher; None if it suggests no configuration now."""
        assert self._searcher is not None
        with self._seeded_random.step():
            suggested_config: Any = self._searcher.suggest(f"{len(self.trials):05d}")
        if suggested_config is None or suggested_config == Searcher.FINISHED:
            # An unsuccessful request must not count as a step, because the number of unsuccessful
            # requests depends on timing, and the number of a step determines its random numbers.
            self._seeded_random.undo_step()
            self._is_exhausted = suggested_config is not None
            return None
        return dict(suggested_config)

    def _add(self, config: Mapping[str, Any]) -> None:
        """Add a new trial, and notify the scheduler."""
        trial = TrialProxy(
            number=len(self.trials),
            config=dict(config),
            folder=self._folder,
            evaluated_params=dict(config),
            observe=self._observe,
        )
        self.trials.append(trial)
        self._live_trials[trial.number] = trial
        self._num_by_status[trial.status] += 1
        with self._seeded_random.step():
            self._scheduler.on_trial_add(self._controller, trial)
        trial.begin_attempt(None)

    def _require_same_suggestion(self, line: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        """Raise an error unless a suggestion equals the suggestion in a line of the journal."""
        number = len(self.trials)
        if json_round_trip(config) != line["config"] or number != line["trial"]:
            raise ContractError(
                f"The searcher suggests {json_round_trip(config)} for trial {number}, but the "
                f"journal contains {line['config']} for trial {line['trial']}.",
                cause="The searcher uses a random generator without a fixed seed.",
                fix="Give the searcher and its sampler a fixed seed.",
            )

    # Decisions

    def _choose(self) -> TrialProxy | None:
        """Return the trial that the scheduler runs next; None for no trial."""
        if not self._num_by_status[Trial.PENDING] and not self._num_by_status[Trial.PAUSED]:
            return None
        with self._seeded_random.step():
            chosen_trial: TrialProxy | None = self._scheduler.choose_trial_to_run(self._controller)
        return chosen_trial

    def _run(self, trial: TrialProxy) -> None:
        """Run a trial, in a new attempt if the scheduler changed its configuration."""
        if trial.config != trial.attempts[-1].config:
            trial.begin_attempt(trial.checkpoint if trial.time else None)
        trial.status = Trial.RUNNING

    def _require_running(self, event: StudyEvent) -> TrialProxy:
        """Return the trial of an event, or raise an error if the trial does not run."""
        number = event.trial
        if number >= len(self.trials) or self.trials[number].status != Trial.RUNNING:
            raise ContractError(
                f"The journal contains a report of trial {number}, but that trial does not run at "
                "this point of the replay.",
                cause="The scheduler decides differently than when the journal was written: its "
                "code or Ray's code has changed, or the scheduler uses the wall-clock time.",
                fix="Resume with the releases of Sluice and Ray that started the study, or start "
                "it in another folder.",
            )
        return self.trials[number]

    def _apply(self, event: StudyEvent) -> None:
        """Add the result of an event to its trial. Then end the trial or ask the scheduler."""
        trial = self._require_running(event)
        self._changed_numbers[trial.number] = None
        result = dict(event.result)
        if result:
            trial.time = result[self._time_attr]
            self._reports.add(trial, result, event.checkpoint)
            # Replace Tune's training_iteration, which restarts at 1 whenever a trial is restored.
            trial.last_result = {**result, "training_iteration": trial.time}
        if event.kind == "error":
            self._end(trial, Trial.ERROR, event.reason)
        elif result and not math.isfinite(result[self._metric]):
            problem = f"{self._metric} is {result[self._metric]} at {self._time_attr} {trial.time}."
            self._end(trial, Trial.ERROR, str(result.get("reason") or problem))
        elif event.kind == "complete":
            self._end(trial, Trial.TERMINATED, event.reason)
        else:
            self._decide(trial, dict(trial.last_result))

    def _decide(self, trial: TrialProxy, result: dict[str, Any]) -> None:
        """Pass a result to the scheduler, apply its decision, and inform the searcher."""
        with self._seeded_random.step():
            decision = self._scheduler.on_trial_result(self._controller, trial, result)
        if decision == TrialScheduler.STOP:
            self._stop(trial)
            return
        if decision == TrialScheduler.PAUSE and trial.status == Trial.RUNNING:
            trial.status = Trial.PAUSED
        if self._searcher is not None:
            with self._seeded_random.step():
                self._searcher.on_trial_result(trial.trial_id, result)

    def _stop(self, trial: TrialProxy) -> None:
        """End a trial that the scheduler stops, possibly during the report of another trial."""
        self._end(trial, Trial.TERMINATED, f"stopped at {self._time_attr} {trial.time}")

    def _end(self, trial: TrialProxy, status: str, reason: str) -> None:
        """Set the final status of a trial, and inform the scheduler and the searcher."""
        if trial.is_finished():
            return
        was_running, has_failed = trial.status == Trial.RUNNING, status == Trial.ERROR
        trial.reason = reason
        with self._seeded_random.step():
            if has_failed:
                self._scheduler.on_trial_error(self._controller, trial)
            elif was_running:
                self._scheduler.on_trial_complete(self._controller, trial, trial.last_result)
            else:
                self._scheduler.on_trial_remove(self._controller, trial)
        trial.status = status
        if self._searcher is not None:
            result = trial.last_result if was_running and not has_failed else None
            with self._seeded_random.step():
                self._searcher.on_trial_complete(trial.trial_id, result=result, error=has_failed)

    def _observe(self, trial: TrialProxy, previous_status: str) -> None:
        """Update the counts, the changed trials and the live trials after a change of a trial."""
        self._num_by_status[previous_status] -= 1
        self._num_by_status[trial.status] += 1
        self._changed_numbers[trial.number] = None
        if trial.is_finished():
            self._live_trials.pop(trial.number, None)


def json_round_trip(config: Mapping[str, Any]) -> Any:
    """Return a configuration as it would be read from the journal, for comparisons."""
    return json.loads(json.dumps(config, default=str))
