"""The trials of a study as records, from the events that its journal has."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.tuning.parameters import Params
from sluice.tuning.records import EpochLosses, Exploit, Step, Strategy, Trial
from sluice.tuning.spaces import Setup, Space
from sluice.tuning.tune_space import decode

if TYPE_CHECKING:
    from sluice.tuning.resumable.events import CheckpointKey
    from sluice.tuning.resumable.shadow import ShadowTrial
    from sluice.tuning.resumable.study import Study


_FAILED = "ERROR"
"""Status of ``ray.tune.experiment.Trial``."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """What a record is made of; unchanged, the record is too."""

    status: str
    attempt: int
    time: float


class TrialRecords:
    """Records of all trials, made again only where a trial changed.

    Args:
        space: The searched parameters.
        base: The settings of all else.
        strategy: Names the scheduler in the reasons.
    """

    def __init__(self, space: Space, base: Setup, strategy: Strategy) -> None:
        self._space, self._base, self._strategy = space, base, strategy
        self._marks: list[_Mark] = []
        self._records: list[Trial] = []

    def update(self, study: "Study") -> tuple[Trial, ...]:
        """Return the records of the study's trials, by number."""
        for trial in study.trials:
            mark = _Mark(trial.status, trial.attempt, trial.time)
            if trial.number == len(self._records):
                self._marks.append(mark)
                self._records.append(self._record(study, trial))
            elif self._marks[trial.number] != mark:
                self._marks[trial.number] = mark
                self._records[trial.number] = self._record(study, trial)
        return tuple(self._records)

    def exploits(self, study: "Study") -> tuple[Exploit, ...]:
        """Return the copies that PBT made, the earliest first."""
        found = [
            Exploit(
                epoch=int(attempt.start.time),
                trial=trial.number,
                donor=attempt.start.trial,
                params=self._params(attempt.config),
            )
            for trial in study.trials
            for attempt in trial.attempts
            if attempt.start is not None and self._trains_on(attempt.start)
        ]
        return tuple(sorted(found, key=lambda exploit: (exploit.epoch, exploit.trial)))

    def _record(self, study: "Study", trial: "ShadowTrial") -> Trial:
        own = study.own_results_of(trial.number)
        epochs = tuple(e for result in study.results_of(trial.number) for e in _losses(result))
        state, reason = self._state(trial, len(epochs))
        return Trial(
            id=trial.number,
            schedule=self._schedule(study, trial.number),
            epochs=epochs,
            state=state,
            reason=reason,
            seconds=sum(float(result.get("seconds", 0)) for result in own),
            damaged_checkpoints=sum(int(r.get("damaged_checkpoints", 0)) for r in own),
        )

    def _schedule(self, study: "Study", number: int) -> tuple[Step, ...]:
        steps: list[Step] = []
        for attempt in study.attempts_of(number):
            if attempt.start is not None and not self._trains_on(attempt.start):
                continue
            params = self._params(attempt.config)
            if not steps or steps[-1].params != params:
                at = 0 if attempt.start is None else int(attempt.start.time)
                steps.append(Step(from_epoch=at, params=params))
        return tuple(steps)

    def _trains_on(self, start: "CheckpointKey") -> bool:
        """Return whether there is an epoch left after a checkpoint that was copied.

        PBT copies after the last epoch as well; the values it sets then are never trained with.
        """
        return start.time < self._base.training.max_epochs

    def _params(self, config: Mapping[str, Any]) -> Params:
        return decode(self._space, self._base, config)

    def _state(self, trial: "ShadowTrial", epochs: int) -> tuple[Any, str]:
        if not trial.is_finished():
            return "running", ""
        if trial.status == _FAILED:
            return "failed", trial.reason
        reason = str(trial.last_result.get("reason", ""))
        if reason or epochs >= self._base.training.max_epochs:
            return "finished", reason
        loss, scheduler = trial.last_result.get("loss"), self._strategy.scheduler
        return "pruned", f"Epoch {epochs}: {scheduler} stopped it at loss {loss:.6g}."


def _losses(result: Mapping[str, Any]) -> list[EpochLosses]:
    return [
        EpochLosses(epoch=epoch, train_loss=train, val_loss=val, kept_loss=kept)
        for epoch, train, val, kept in json.loads(result.get("curve") or "[]")
    ]
