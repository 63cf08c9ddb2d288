"""Proxies that a wrapped scheduler gets in place of Tune's trials and controller.

The state of the proxies depends only on the journal, so the same journal leads to the same
decisions in another process.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from ray.tune.experiment import Trial

from sluice.tuning.resumable.events import CheckpointKey, TrialAttempt


class _CheckpointManager:
    """Proxy of a trial's checkpoint manager, with the attributes that schedulers read and write."""

    def __init__(self, trial: "TrialProxy") -> None:
        self._trial = trial
        self.checkpoint_config = SimpleNamespace(num_to_keep=None)

    @property
    def _latest_checkpoint_result(self) -> Any:
        return self._trial.checkpoint

    @_latest_checkpoint_result.setter
    def _latest_checkpoint_result(self, copied: Any) -> None:
        """Start a new attempt from ``copied.checkpoint``, as PBT requests by this assignment."""
        self._trial.begin_attempt(copied.checkpoint)


@dataclass(eq=False, slots=True, kw_only=True)
class TrialProxy:
    """Proxy of a trial, with the attributes of ``ray.tune.experiment.Trial``."""

    number: int
    config: dict[str, Any]
    folder: str
    """Folder of the files that a scheduler writes, such as PBT's record of its changes."""

    observe: Callable[["TrialProxy", str], None]
    """Called with this trial and its previous status after the status or the attempt changed."""

    last_result: dict[str, Any] = field(default_factory=dict)
    time: float = 0
    """Value of ``time_attr`` in the last result of the attempt, or at the start of the attempt."""

    reason: str = ""
    """Why the trial ended, as text."""

    attempts: list[TrialAttempt] = field(default_factory=list)
    """All attempts, the current attempt last. A new attempt starts when the trial copies another
    trial, or when the scheduler has changed the configuration."""

    experiment_tag: str = ""
    evaluated_params: dict[str, Any] = field(default_factory=dict)
    run_metadata: Any = field(init=False)
    temporary_state: Any = field(default_factory=lambda: SimpleNamespace(saving_to=None))
    _status: str = Trial.PENDING

    def __post_init__(self) -> None:
        self.run_metadata = SimpleNamespace(checkpoint_manager=_CheckpointManager(self))
        self.experiment_tag = self.experiment_tag or str(self.number)

    def __repr__(self) -> str:
        return f"trial {self.number}"

    __str__ = __repr__

    @property
    def status(self) -> str:
        """One of the statuses of ``ray.tune.experiment.Trial``."""
        return self._status

    @status.setter
    def status(self, status: str) -> None:
        previous_status, self._status = self._status, status
        self.observe(self, previous_status)

    @property
    def attempt(self) -> int:
        """Number of the current attempt, from 0."""
        return max(len(self.attempts) - 1, 0)

    @property
    def start(self) -> CheckpointKey | None:
        """Checkpoint from which the current attempt started."""
        return self.attempts[-1].start if self.attempts else None

    def begin_attempt(self, start: CheckpointKey | None) -> None:
        """Start an attempt with the current configuration; ``start`` None means initial weights."""
        self.attempts.append(TrialAttempt(start, dict(self.config)))
        self.time = start.time if start else 0
        self.observe(self, self._status)

    @property
    def trial_id(self) -> str:
        """Id of the trial, equal in every process."""
        return f"{self.number:05d}"

    @property
    def checkpoint(self) -> CheckpointKey:
        """Checkpoint of the attempt's last result; before any result, the start of the attempt."""
        if self.start is not None and self.time == self.start.time:
            return self.start
        return CheckpointKey(self.number, self.attempt, self.time)

    local_experiment_path = property(lambda self: self.folder)
    local_dir = property(lambda self: self.folder)
    is_saving = False
    placement_group_factory = None

    def is_finished(self) -> bool:
        """Return whether the trial ended, successfully or not."""
        return self._status in (Trial.TERMINATED, Trial.ERROR)

    def set_config(self, config: Mapping[str, Any]) -> None:
        """Replace the configuration, which is used from the next start on."""
        self.config = dict(config)

    def set_experiment_tag(self, tag: str) -> None:
        """Replace the tag."""
        self.experiment_tag = tag

    def set_status(self, status: str) -> None:
        """Replace the status."""
        self.status = status


class ControllerProxy:
    """The part of Tune's controller that schedulers use.

    Args:
        trials: The study's trials, to which the study appends.
        searcher: The searcher, which HyperBandForBOHB calls; None without a searcher.
        stop: Ends a trial.
        reference_checkpoint: Returns the key of a trial's checkpoint. The checkpoint is kept while
            the key is referenced.
    """

    def __init__(
        self,
        trials: Sequence[TrialProxy],
        searcher: Any,
        stop: Callable[[TrialProxy], None],
        reference_checkpoint: Callable[[TrialProxy], CheckpointKey],
    ) -> None:
        self._trials, self._stop = trials, stop
        self._reference_checkpoint = reference_checkpoint
        # HyperBandForBOHB calls ``search_alg.searcher``. A namespace is used, because PBT rejects a
        # ``SearchGenerator``, which may suggest a configuration at any time. The namespace is safe,
        # because here the searcher only suggests the first configuration of each trial.
        self.search_alg = None if searcher is None else SimpleNamespace(searcher=searcher)
        self.trial_executor = self

    def get_trials(self) -> Sequence[TrialProxy]:
        """Return all trials, oldest first."""
        return self._trials

    def get_live_trials(self) -> list[TrialProxy]:
        """Return the trials that have not ended, oldest first."""
        return [trial for trial in self._trials if not trial.is_finished()]

    def has_resources_for_trial(self, trial: TrialProxy) -> bool:
        """Return True, because the study decides which trials run."""
        del trial
        return True

    def stop_trial(self, trial: TrialProxy) -> None:
        """End a trial."""
        self._stop(trial)

    def pause_trial(self, trial: TrialProxy, should_checkpoint: bool = True) -> None:
        """Pause a trial. No checkpoint is written, because every report has one already."""
        del should_checkpoint
        trial.status = Trial.PAUSED

    def _set_trial_status(self, trial: TrialProxy, status: str) -> None:
        trial.status = status

    def _schedule_trial_save(
        self, trial: TrialProxy, result: Mapping[str, Any] | None = None
    ) -> CheckpointKey:
        del result
        return self._reference_checkpoint(trial)

    save = _schedule_trial_save
