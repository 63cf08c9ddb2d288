"""Records of a search: schedules, reports, trials and the result."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from sluice.base.settings import Record
from sluice.tuning.parameters import Params
from sluice.tuning.spaces import TrialSettings


class ScheduleStep(Record):
    """Values of a trial from one epoch on."""

    from_epoch: int = Field(description="Number of epochs before the step.")
    params: Params


class EpochLosses(Record):
    """Losses of a trial after one epoch, as means over its folds."""

    epoch: int
    train_loss: float
    val_loss: float
    kept_loss: float = Field(description="Validation loss of the epoch selected so far.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReport:
    """State of a trial's training after an epoch. It is valid until training continues."""

    epochs: tuple[EpochLosses, ...]
    """Losses of every epoch from the trial's first one on."""
    finished: bool
    """Whether training has ended by patience or after the last epoch."""
    reason: str
    """Why training ended, as text; empty while it continues."""
    save: Callable[[Path], None]
    """Writes the checkpoint into an empty folder; raises StorageError if it cannot."""
    damaged_checkpoints: int = 0
    """Number of damaged checkpoints that were replaced by repeated training; changes no loss."""


class TrialRecord(Record):
    """One trial and its outcome."""

    id: int
    schedule: tuple[ScheduleStep, ...] = Field(
        description="Values over time; one step unless PBT changed them."
    )
    epochs: tuple[EpochLosses, ...] = ()
    state: Literal["running", "finished", "pruned", "failed"] = "running"
    reason: str = Field("", description="Why the trial was stopped or failed.")
    seconds: float = Field(0.0, description="Time that workers spent on the trial [s].")
    damaged_checkpoints: int = Field(
        0,
        description="Number of damaged checkpoints that were skipped for an older one; they "
        "change no loss.",
    )

    @property
    def params(self) -> Params:
        """Final values of the trial."""
        return self.schedule[-1].params

    @property
    def loss(self) -> float:
        """Validation loss of its selected epoch; infinite if it failed or ran no epoch."""
        if self.state == "failed" or not self.epochs:
            return math.inf
        return self.epochs[-1].kept_loss


class Exploit(Record):
    """A step of PBT: a weak trial continues from a strong one's weights with changed values."""

    epoch: int
    trial: int
    donor: int
    params: Params


class Strategy(Record):
    """How trials are suggested and stopped, and why."""

    proposals: str = Field(description="'random', 'tpe', or the import path of a searcher.")
    scheduler: str = Field(
        description="'median', 'asha', 'pbt', 'none', or the import path of a scheduler."
    )
    parameters: tuple[str, ...] = Field(description="Searched paths.")
    decision_epochs: tuple[int, ...] = Field(
        description="Epochs after which a trial reports, so that it can be stopped or changed."
    )
    changing: tuple[str, ...] = Field(
        (), description="Paths whose values the scheduler changes during training."
    )
    reason: str


class SearchResult(Record):
    """Result of a search.

    The winner's loss is the minimum of ``num_trials`` losses, and so optimistically biased.
    """

    strategy: Strategy
    trials: tuple[TrialRecord, ...]
    best: int = Field(description="Id of the best trial.")
    setup: TrialSettings = Field(
        description="Settings with which a training from the start reproduces the best trial."
    )
    exploits: tuple[Exploit, ...] = ()
    num_trials: int
    seconds: float = Field(description="Time that workers spent on all trials [s].")

    @property
    def winner(self) -> TrialRecord:
        """The best trial."""
        return self.trials[self.best]
