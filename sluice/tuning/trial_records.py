"""Converts the trials of a study to the records that users and reports get."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.tuning.parameters import Params
from sluice.tuning.records import EpochLosses, Exploit, ScheduleStep, Strategy, TrialRecord
from sluice.tuning.spaces import Space, TrialSettings
from sluice.tuning.tune_space import decode

if TYPE_CHECKING:
    from sluice.tuning.resumable.events import CheckpointKey
    from sluice.tuning.resumable.proxies import TrialProxy
    from sluice.tuning.resumable.study import Study


_FAILED_STATUS = "ERROR"
"""Status of a failed ``ray.tune.experiment.Trial``."""


@dataclass(frozen=True, slots=True)
class _RecordedState:
    """State of a trial when its record was made. The record is reused until the state changes."""

    status: str
    attempt: int
    time: float
    """Epoch of the last report; see ``TrialProxy.time``."""


class TrialRecords:
    """Records of all trials. An update converts only trials that changed since the last update.

    Args:
        space: The searched parameters.
        base: Settings before the values of a trial replace some of them.
        strategy: Strategy of the search. The reasons of early stops name its scheduler.
    """

    def __init__(self, space: Space, base: TrialSettings, strategy: Strategy) -> None:
        self._space, self._base, self._strategy = space, base, strategy
        self._recorded_states: list[_RecordedState] = []
        self._records: list[TrialRecord] = []

    def update(self, study: "Study") -> tuple[TrialRecord, ...]:
        """Convert the trials that changed, and return the records of all trials, by number."""
        for trial in study.trials:
            state = _RecordedState(trial.status, trial.attempt, trial.time)
            if trial.number == len(self._records):
                self._recorded_states.append(state)
                self._records.append(self._record(study, trial))
            elif self._recorded_states[trial.number] != state:
                self._recorded_states[trial.number] = state
                self._records[trial.number] = self._record(study, trial)
        return tuple(self._records)

    def exploits(self, study: "Study") -> tuple[Exploit, ...]:
        """Return the exploits of PBT, the earliest first."""
        exploits = [
            Exploit(
                epoch=int(attempt.start.time),
                trial=trial.number,
                donor=attempt.start.trial,
                params=self._params(attempt.config),
            )
            for trial in study.trials
            for attempt in trial.attempts
            if attempt.start is not None and self._has_epochs_left(attempt.start)
        ]
        return tuple(sorted(exploits, key=lambda exploit: (exploit.epoch, exploit.trial)))

    def _record(self, study: "Study", trial: "TrialProxy") -> TrialRecord:
        own_results = study.own_results_of(trial.number)
        epochs = tuple(
            epoch for result in study.results_of(trial.number) for epoch in _decode_curve(result)
        )
        state, reason = self._state_and_reason(trial, len(epochs))
        return TrialRecord(
            id=trial.number,
            schedule=self._schedule(study, trial.number),
            epochs=epochs,
            state=state,
            reason=reason,
            seconds=sum(float(result.get("seconds", 0)) for result in own_results),
            damaged_checkpoints=sum(int(r.get("damaged_checkpoints", 0)) for r in own_results),
        )

    def _schedule(self, study: "Study", number: int) -> tuple[ScheduleStep, ...]:
        """Return the values that led to a trial's current weights, over time."""
        steps: list[ScheduleStep] = []
        for attempt in study.attempts_of(number):
            if attempt.start is not None and not self._has_epochs_left(attempt.start):
                continue
            params = self._params(attempt.config)
            if not steps or steps[-1].params != params:
                from_epoch = 0 if attempt.start is None else int(attempt.start.time)
                steps.append(ScheduleStep(from_epoch=from_epoch, params=params))
        return tuple(steps)

    def _has_epochs_left(self, start: "CheckpointKey") -> bool:
        """Return whether epochs remain after a copied checkpoint.

        PBT may also copy after the last epoch. The values that it sets then are never used.
        """
        return start.time < self._base.training.max_epochs

    def _params(self, config: Mapping[str, Any]) -> Params:
        return decode(self._space, self._base, config)

    def _state_and_reason(self, trial: "TrialProxy", num_epochs: int) -> tuple[Any, str]:
        """Return the state of a record, and why the trial ended."""
        if not trial.is_finished():
            return "running", ""
        if trial.status == _FAILED_STATUS:
            return "failed", trial.reason
        reason = str(trial.last_result.get("reason", ""))
        if reason or num_epochs >= self._base.training.max_epochs:
            return "finished", reason
        loss, scheduler = trial.last_result.get("loss"), self._strategy.scheduler
        return "pruned", f"Epoch {num_epochs}: {scheduler} stopped the trial at loss {loss:.6g}."


def _decode_curve(result: Mapping[str, Any]) -> list[EpochLosses]:
    """Return the losses of each epoch that a result reports."""
    return [
        EpochLosses(epoch=epoch, train_loss=train, val_loss=val, kept_loss=kept)
        for epoch, train, val, kept in json.loads(result.get("curve") or "[]")
    ]
