"""Records of a search: the schedules, reports and outcomes of trials, and the result."""

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
    """Values with which a trial trains from one epoch on."""

    from_epoch: int = Field(description="Number of epochs before these values take effect.")
    params: Params


class EpochLosses(Record):
    """Losses of a trial after one epoch; each is the mean over the folds."""

    epoch: int
    train_loss: float
    val_loss: float
    kept_loss: float = Field(description="Validation loss of the epoch selected so far.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReport:
    """State of a trial's training after an epoch. ``save`` must be called before the next epoch."""

    epochs: tuple[EpochLosses, ...]
    """Losses of every epoch, from the first epoch of the trial on."""
    is_finished: bool
    """Whether training has ended, by early stopping or after the last epoch."""
    reason: str
    """Why training ended, as text; empty while training continues."""
    save: Callable[[Path], None]
    """Function that writes the checkpoint into an empty folder; it may raise ``StorageError``."""
    damaged_checkpoints: int = 0
    """Number of damaged checkpoints. Their epochs were trained again, with equal losses."""


class TrialRecord(Record):
    """One trial and its outcome."""

    id: int
    schedule: tuple[ScheduleStep, ...] = Field(
        description="Values over time; a single step unless PBT changed them."
    )
    epochs: tuple[EpochLosses, ...] = ()
    state: Literal["running", "finished", "pruned", "failed"] = "running"
    reason: str = Field("", description="Why the trial ended.")
    seconds: float = Field(0.0, description="Time that workers spent on the trial [s].")
    damaged_checkpoints: int = Field(
        0,
        description="Number of damaged checkpoints, whose epochs were trained again; the losses "
        "are the same.",
    )

    @property
    def params(self) -> Params:
        """Final values of the trial."""
        return self.schedule[-1].params

    @property
    def loss(self) -> float:
        """Validation loss of the selected epoch; infinite if the trial failed or ran no epoch."""
        if self.state == "failed" or not self.epochs:
            return math.inf
        return self.epochs[-1].kept_loss


class Exploit(Record):
    """Exploit of PBT: a weak trial copies the weights of a strong trial, and gets new values."""

    epoch: int = Field(description="Number of epochs before the copy.")
    trial: int = Field(description="Id of the trial that continues from copied weights.")
    donor: int = Field(description="Id of the trial whose weights are copied.")
    params: Params = Field(description="Values with which the trial continues.")


class Strategy(Record):
    """How a search suggests and stops trials, and why."""

    proposals: str = Field(description="'random', 'tpe', or the import path of a searcher.")
    scheduler: str = Field(
        description="'median', 'asha', 'pbt', 'none', or the import path of a scheduler."
    )
    parameters: tuple[str, ...] = Field(description="Paths of the searched parameters.")
    decision_epochs: tuple[int, ...] = Field(
        description="Epochs after which a trial reports, so that it can be stopped or changed."
    )
    changing: tuple[str, ...] = Field(
        (), description="Paths whose values the scheduler changes during training."
    )
    reason: str = Field(description="Why this strategy was selected.")


class SearchResult(Record):
    """Result of a search.

    The winner's loss is the minimum of ``num_trials`` losses and therefore optimistically biased.
    """

    strategy: Strategy
    trials: tuple[TrialRecord, ...]
    best: int = Field(description="Id of the best trial.")
    setup: TrialSettings = Field(
        description="Settings with which a new training reproduces the best trial."
    )
    exploits: tuple[Exploit, ...] = ()
    num_trials: int
    seconds: float = Field(description="Time that workers spent on all trials [s].")

    @property
    def winner(self) -> TrialRecord:
        """Record of the best trial."""
        return self.trials[self.best]
