"""What a search hands around: parts of trials, what came of them, and the result."""

import math
from typing import Literal

from pydantic import Field

from sluice.settings import Record
from sluice.tuning.parameters import Params
from sluice.tuning.spaces import Setup

Key = tuple[int, int]
"""(trial, epoch): a trial after that many epochs."""


class Step(Record):
    """From which epoch on a trial had which values."""

    from_epoch: int = Field(description="Epochs done before it.")
    params: Params


class Segment(Record):
    """A part of a trial between two decisions: the unit of work that a worker gets."""

    trial: int
    start: Key | None = Field(description="Whose checkpoint it goes on from; None for a fresh one.")
    until: int = Field(description="Epoch after which it stops [epochs].")
    schedule: tuple[Step, ...] = Field(
        description="Values from the first epoch on: without ``start``, or when its checkpoint is "
        "lost, training through them leads to the same weights."
    )

    @property
    def params(self) -> Params:
        """The values it trains with."""
        return self.schedule[-1].params

    @property
    def key(self) -> Key:
        """Where it ends."""
        return self.trial, self.until


class EpochLosses(Record):
    """Losses of a trial after one epoch, means over its folds."""

    epoch: int
    train_loss: float
    val_loss: float
    kept_loss: float = Field(description="Validation loss of the epoch chosen so far.")


class Outcome(Record):
    """What came of a segment."""

    trial: int
    until: int
    epochs: tuple[EpochLosses, ...] = Field(description="From the trial's first epoch on.")
    status: Literal["reached", "finished", "failed"] = Field(
        description="'finished' when training ended by itself before ``until``."
    )
    reason: str = ""
    seconds: float = Field(0.0, description="Time a worker spent on it [s].")
    damaged_checkpoints: int = Field(
        0, description="Passed over for an older one; it changes no loss."
    )

    @property
    def key(self) -> Key:
        """Which segment it is of."""
        return self.trial, self.until

    @property
    def loss(self) -> float:
        """The kept loss so far; infinite when there is none."""
        return self.epochs[-1].kept_loss if self.epochs else math.inf

    def checked(self) -> "Outcome":
        """Return it as failed when a loss is not finite; unchanged otherwise."""
        for epoch in self.epochs:
            for name in ("train_loss", "val_loss", "kept_loss"):
                value = getattr(epoch, name)
                if self.status != "failed" and not math.isfinite(value):
                    reason = f"{name} is {value} at epoch {epoch.epoch}."
                    return self.model_copy(update={"status": "failed", "reason": reason})
        if self.status != "failed" and not self.epochs:
            return self.model_copy(update={"status": "failed", "reason": "It ran no epoch."})
        return self


class Trial(Record):
    """One trial and its end."""

    id: int
    schedule: tuple[Step, ...] = Field(description="One step, unless PBT changed the values.")
    epochs: tuple[EpochLosses, ...] = ()
    state: Literal["running", "finished", "pruned", "failed"] = "running"
    reason: str = Field("", description="Why it was stopped or failed.")
    seconds: float = Field(0.0, description="Time workers spent on it [s].")

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
