"""Save and load functions with a defect, for the checkpoint validator.

The training is an ordinary script on the iris data, with batches in a fixed order, dropout, AdamW
and a schedule. Each subclass of ``TrainingScript`` loses a part of the state.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sluice.failfast.checkpoints.resumption import StoppableTraining, check_resumption
from sluice.findings.check_outcome import CheckOutcome

_BATCH_ROWS = 30


class TrainingScript:
    """A healthy training script that saves its complete state."""

    def __init__(self) -> None:
        from sklearn.datasets import load_iris  # takes a second, because it imports scipy.stats

        features, labels = load_iris(return_X_y=True)
        self.x = torch.tensor(features, dtype=torch.float32)
        self.y = torch.tensor(labels)
        self.model = nn.Sequential(
            nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 100)
        self.num_steps_done = 0

    def step(self) -> Tensor:
        """Train on the next batch."""
        self.model.train()
        rows = (torch.arange(_BATCH_ROWS) * 7 + self.num_steps_done) % len(self.x)
        self.num_steps_done += 1
        loss = nn.functional.cross_entropy(self.model(self.x[rows]), self.y[rows])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss

    def make_content(self) -> dict[str, Any]:
        """Return the content of a checkpoint: the complete state of the training."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "num_steps_done": self.num_steps_done,
            "random": torch.get_rng_state(),
        }

    def restore(self, content: dict[str, Any]) -> None:
        """Restore the state from the content of a checkpoint."""
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.schedule.load_state_dict(content["schedule"])
        self.num_steps_done = content["num_steps_done"]
        torch.set_rng_state(content["random"])

    def save(self, path: Path) -> None:
        """Write a checkpoint."""
        torch.save(self.make_content(), path)

    def load(self, path: Path) -> None:
        """Read a checkpoint and restore its state."""
        self.restore(torch.load(path, weights_only=True))

    def as_stoppable(self) -> StoppableTraining:
        """Return the script in the form that the validator expects."""
        return StoppableTraining(
            model=self.model,
            step=self.step,
            predict=lambda: self.model(self.x),
            save=self.save,
            load=self.load,
            states={"optimizer": self.optimizer, "schedule": self.schedule},
        )


class KeysWithWrapperPrefix(TrainingScript):
    """Saves the keys of a DataParallel wrapper and loads them with strict=False: no key matches."""

    def make_content(self) -> dict[str, Any]:
        """Return the content with 'module.' before each name of the model."""
        model = {f"module.{name}": value for name, value in self.model.state_dict().items()}
        return super().make_content() | {"model": model}

    def restore(self, content: dict[str, Any]) -> None:
        """Load only model parameters whose keys match (none), and the other state completely."""
        self.model.load_state_dict(content["model"], strict=False)
        super().restore(content | {"model": self.model.state_dict()})


class OptimizerStateLost(TrainingScript):
    """Does not restore the optimizer: its moments and step counts are lost."""

    def restore(self, content: dict[str, Any]) -> None:
        """Restore all but the optimizer's state."""
        super().restore(content | {"optimizer": self.optimizer.state_dict()})


class ScheduleStateLost(TrainingScript):
    """Does not restore the schedule: the learning rate starts at its peak again."""

    def restore(self, content: dict[str, Any]) -> None:
        """Restore all but the schedule's state."""
        super().restore(content | {"schedule": self.schedule.state_dict()})


class RandomStateLost(TrainingScript):
    """Does not restore the random state: dropout continues with other masks."""

    def restore(self, content: dict[str, Any]) -> None:
        """Restore all but the random state."""
        super().restore(content | {"random": torch.get_rng_state()})


def resumption_validator(script: type[TrainingScript]) -> Callable[[Path], CheckOutcome]:
    """Return a function that validates the checkpoints of a script, with files in a folder."""
    return lambda folder: check_resumption(
        lambda: script().as_stoppable(), num_steps=3, seed=0, folder=folder
    )
