"""What a search hands around: parts of trials, what came of them, and the result."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from sluice.base.settings import Record
from sluice.tuning.parameters import Params
from sluice.tuning.spaces import Setup


class Step(Record):
    """From which epoch on a trial had which values."""

    from_epoch: int = Field(description="Epochs done before it.")
    params: Params


class EpochLosses(Record):
    """Losses of a trial after one epoch, means over its folds."""

    epoch: int
    train_loss: float
    val_loss: float
    kept_loss: float = Field(description="Validation loss of the epoch chosen so far.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """State of a trial's training after an epoch. It is valid until training goes on."""

    epochs: tuple[EpochLosses, ...]
    """Losses of every epoch from the trial's first one on."""
    finished: bool
    """Whether training ended by itself: by patience, or after the last epoch."""
    reason: str
    """Why training ended by itself, for people; empty while it goes on."""
    save: Callable[[Path], None]
    """Writes the checkpoint into an empty folder; raises StorageError when it cannot."""
    damaged_checkpoints: int = 0
    """Number of damaged checkpoints that were replaced by training again; changes no loss."""


class Trial(Record):
    """One trial and its end."""

    id: int
    schedule: tuple[Step, ...] = Field(description="One step, unless PBT changed the values.")
    epochs: tuple[EpochLosses, ...] = ()
    state: Literal["running", "finished", "pruned", "failed"] = "running"
    reason: str = Field("", description="Why it was stopped or failed.")
    seconds: float = Field(0.0, description="Time workers spent on it [s].")
    damaged_checkpoints: int = Field(
        0, description="Checkpoints that were passed over for an older one; they change no loss."
    )

    @property
    def params(self) -> Params:
        """The values it ended with."""
        return self.schedule[-1].params

    @property
    def loss(self) -> float:
        """Validation loss of its chosen epoch; infinite when it failed or ran no epoch."""
        if self.state == "failed" or not self.epochs:
            return math.inf
        return self.epochs[-1].kept_loss


class Exploit(Record):
    """A step of PBT: a weak trial went on from a strong one's weights with changed values."""

    epoch: int
    trial: int
    donor: int
    params: Params


class Strategy(Record):
    """How trials are proposed and stopped, and why so."""

    proposals: str = Field(description="'random', 'tpe', or the import path of a searcher.")
    scheduler: str = Field(
        description="'median', 'asha', 'pbt', 'none', or the import path of a scheduler."
    )
    parameters: tuple[str, ...] = Field(description="Paths that are searched.")
    decision_epochs: tuple[int, ...] = Field(
        description="Epochs after which a trial reports, so that it can be stopped or changed."
    )
    changing: tuple[str, ...] = Field(
        (), description="Paths whose values the scheduler changes in mid-training."
    )
    reason: str


class SearchResult(Record):
    """What a search found; the winner's loss is the best of ``num_trials`` and flattered by it."""

    strategy: Strategy
    trials: tuple[Trial, ...]
    best: int = Field(description="Id of the best trial.")
    setup: Setup = Field(
        description="Settings with which training from the start ends where the best trial did."
    )
    exploits: tuple[Exploit, ...] = ()
    num_trials: int
    seconds: float = Field(description="Time workers spent on all trials [s].")

    @property
    def winner(self) -> Trial:
        """The best trial."""
        return self.trials[self.best]
