"""Stand-ins for a trial and the Tune controller, which a scheduler decides about.

A wrapped scheduler never sees Tune's own trials. It sees these, whose state is a function of the
journal alone, so that the same journal leads to the same decisions in another process.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from ray.tune.experiment import Trial

from sluice.tuning.resumable.events import Attempt, CheckpointKey


class _CheckpointManager:
    """What a scheduler reads and writes about checkpoints."""

    def __init__(self, trial: "ShadowTrial") -> None:
        self._trial = trial
        self.checkpoint_config = SimpleNamespace(num_to_keep=None)

    @property
    def _latest_checkpoint_result(self) -> Any:
        return self._trial.checkpoint

    @_latest_checkpoint_result.setter
    def _latest_checkpoint_result(self, copied: Any) -> None:
        """Record that the trial continues from a checkpoint (``copied.checkpoint``)."""
        self._trial.begin_attempt(copied.checkpoint)


@dataclass(eq=False, slots=True, kw_only=True)
class ShadowTrial:
    """A trial as a scheduler sees it; its attributes are those of ``ray.tune.experiment.Trial``."""

    number: int
    config: dict[str, Any]
    folder: str
    """Folder of the files that a scheduler writes, as PBT's record of its changes."""

    observe: Callable[["ShadowTrial", str], None]
    """Told, with the status before, after the status or the attempt changed."""

    last_result: dict[str, Any] = field(default_factory=dict)
    time: float = 0
    """Value of ``time_attr`` in the last result of the attempt, or where the attempt began."""

    reason: str = ""
    """Why the trial ended, for people."""

    attempts: list[Attempt] = field(default_factory=list)
    """Every attempt, the present one last; an attempt begins with a copy of another trial."""

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
        before, self._status = self._status, status
        self.observe(self, before)

    @property
    def attempt(self) -> int:
        """Number of the present attempt, from 0."""
        return max(len(self.attempts) - 1, 0)

    @property
    def start(self) -> CheckpointKey | None:
        """Checkpoint that the present attempt started from."""
        return self.attempts[-1].start if self.attempts else None

    def begin_attempt(self, start: CheckpointKey | None) -> None:
        """Go on from a checkpoint, with the present configuration."""
        self.attempts.append(Attempt(start, dict(self.config)))
        self.time = start.time if start else 0
        self.observe(self, self._status)

    @property
    def trial_id(self) -> str:
        """Identity of the trial, equal in every process."""
        return f"{self.number:05d}"

    @property
    def checkpoint(self) -> CheckpointKey:
        """Checkpoint of the last result of this attempt, or the one that the attempt copied."""
        if self.start is not None and self.time == self.start.time:
            return self.start
        return CheckpointKey(self.number, self.attempt, self.time)

    local_experiment_path = property(lambda self: self.folder)
    local_dir = property(lambda self: self.folder)
    is_saving = False
    placement_group_factory = None

    def is_finished(self) -> bool:
        """Return whether the trial ended, well or not."""
        return self._status in (Trial.TERMINATED, Trial.ERROR)

    def set_config(self, config: Mapping[str, Any]) -> None:
        """Replace the configuration; it holds from the next start on."""
        self.config = dict(config)

    def set_experiment_tag(self, tag: str) -> None:
        """Replace the tag."""
        self.experiment_tag = tag

    def set_status(self, status: str) -> None:
        """Replace the status."""
        self.status = status


class ShadowController:
    """The part of Tune's controller that schedulers use.

    Args:
        trials: The study's trials, which the study appends to.
        searcher: The searcher itself, which HyperBandForBOHB calls; None without one.
        stop: Ends a trial.
        save: Returns the key of a trial's checkpoint, and keeps it while somebody holds the key.
    """

    def __init__(
        self,
        trials: Sequence[ShadowTrial],
        searcher: Any,
        stop: Callable[[ShadowTrial], None],
        save: Callable[[ShadowTrial], CheckpointKey],
    ) -> None:
        self._trials, self._stop, self._save = trials, stop, save
        # PBT refuses a controller with a searcher that may suggest at any time; ours suggests
        # each trial's first configuration only.
        self.search_alg = None if searcher is None else SimpleNamespace(searcher=searcher)
        self.trial_executor = self

    def get_trials(self) -> Sequence[ShadowTrial]:
        """Return all trials, oldest first."""
        return self._trials

    def get_live_trials(self) -> list[ShadowTrial]:
        """Return the trials that have not ended, oldest first."""
        return [trial for trial in self._trials if not trial.is_finished()]

    def has_resources_for_trial(self, trial: ShadowTrial) -> bool:
        """Return True: what runs is decided by the study."""
        del trial
        return True

    def stop_trial(self, trial: ShadowTrial) -> None:
        """End a trial."""
        self._stop(trial)

    def pause_trial(self, trial: ShadowTrial, should_checkpoint: bool = True) -> None:
        """Pause a trial; every report comes with a checkpoint, so none has to be made."""
        del should_checkpoint
        trial.status = Trial.PAUSED

    def _set_trial_status(self, trial: ShadowTrial, status: str) -> None:
        trial.status = status

    def _schedule_trial_save(
        self, trial: ShadowTrial, result: Mapping[str, Any] | None = None
    ) -> CheckpointKey:
        del result
        return self._save(trial)

    save = _schedule_trial_save
