"""POC-10: does a checkpoint of this workload bring back all that the training needs?"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sluice.base.errors import ContractError, TrainingFailed
from sluice.base.seeding import deterministic
from sluice.config.poc_settings import PocSettings
from sluice.failfast.checkpoints.resumption import StoppableTraining, check_resumption
from sluice.failfast.learning.instantiation import too_few
from sluice.failfast.learning.probe import spread
from sluice.findings.finding import Finding
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.training.checkpoint import load_checkpoint, save_checkpoint
from sluice.training.loop import EpochResult, TrainState, predict, train
from sluice.training.parameter_groups import listed_groups
from sluice.training.settings import TrainSettings
from sluice.workloads.prepare_model import prepare_model
from sluice.workloads.workload import Examples, Workload

_EPOCHS = 3
"""Epochs that the schedule is made for: the second of them, which is the last that runs, has a
rate well above that of the end."""

_SUBJECT = {"check": "POC-10"}


def check_checkpoint(
    workload: Workload,
    model_settings: ModelSettings,
    training: TrainSettings,
    examples: Examples,
    settings: PocSettings,
    *,
    seed: int,
    folder: Path,
) -> Finding:
    """Train an epoch, save, load into a fresh model, train another, as if never stopped (POC-10).

    The real loop and the real checkpoint files are used. The fresh model starts from other
    weights, so whatever is not restored shows.

    Args:
        workload: Builds the model and has the losses.
        model_settings: Architecture and size.
        training: The real training's settings; only the number of epochs differs here.
        examples: Train examples of a fold.
        settings: Size of the slice.
        seed: Base seed.
        folder: An existing folder on the disk that will hold the real checkpoints; nothing is
            left in it.

    Raises:
        Exception: Whatever the model's or the loss's own code raises.

    Cost:
        Four passes over ``checkpoint_rows`` examples at most, and three files.
    """
    if len(examples) < 2:
        return too_few(len(examples), 2)
    slice_ = _without_single(spread(examples, settings.checkpoint_rows), training.batch_rows)
    brief = training.model_copy(update={"max_epochs": _EPOCHS, "patience_epochs": _EPOCHS})

    def start() -> StoppableTraining:
        # Another seed at every call, as the caller seeds the global generators.
        own = int(torch.randint(2**62, ()))
        model = prepare_model(workload, model_settings, slice_, seed=own)
        _require_tensors(model)
        groups = listed_groups(workload.parameter_groups(model.network), brief)
        return _Epochs(workload, model, groups, brief, slice_, seed).stoppable()

    try:
        with deterministic():
            return check_resumption(start, num_steps=1, seed=seed, folder=folder)
    except TrainingFailed as error:
        return Finding(
            outcome="insufficient",
            summary=f"There is no checkpoint to look at: {error.what}",
            kind="mini training diverged",
            cause=error.cause,
            fix=error.fix,
        )


@dataclass(slots=True)
class _Epochs:
    """The real loop, as a training of which one step is an epoch."""

    workload: Workload
    model: Scaled
    groups: list[dict[str, Any]]
    settings: TrainSettings
    rows: Examples
    seed: int
    state: TrainState | None = None
    running: Iterator[EpochResult] | None = None

    def stoppable(self) -> StoppableTraining:
        return StoppableTraining(
            model=self.model,
            step=self.step,
            predict=lambda: predict(self.model, self.rows.x),
            save=self.save,
            load=self.load,
            states={
                "optimizer": _Part(self._moments),
                "random generators": _Part(lambda: self.state.rng if self.state else {}),
                "progress": _Part(self._progress),
            },
        )

    def step(self) -> float:
        if self.running is None:
            self.running = train(
                self.model,
                self.workload.loss,
                self.workload.losses,
                self.rows,
                self.rows,
                self.settings,
                seed=self.seed,
                groups=self.groups,
                resume=self.state,
                keep=self._keep,
            )
        return next(self.running).train_loss

    def save(self, path: Path) -> None:
        assert self.state is not None
        save_checkpoint(path, self.state, subject=_SUBJECT)

    def load(self, path: Path) -> None:
        restored = load_checkpoint(path, subject=_SUBJECT).state
        if restored is None:
            raise ContractError(
                f"There is no sound checkpoint in {path}.",
                cause="The file is torn or was changed.",
                fix="Check the disk.",
            )
        self.state = restored
        self.model.load_state_dict(restored.model)

    def _keep(self, state: TrainState) -> None:
        self.state = state

    def _moments(self) -> dict[str, Tensor]:
        """Return the optimizer's state by the names of its parameters."""
        if self.state is None:
            return {}
        names = {id(p): name for name, p in self.model.network.named_parameters()}
        order = [names.get(id(p), "?") for group in self.groups for p in group["params"]]
        named = {}
        for key, tensor in self.state.optimizer.items():
            index, _, moment = key.partition("/")
            # An optimizer may keep tensors that are no parameter's.
            owner = order[int(index)] if index.isdigit() else index
            named[f"{owner}/{moment}"] = tensor
        return named

    def _progress(self) -> dict[str, Any]:
        if self.state is None:
            return {}
        history = [dataclasses.asdict(result) | {"seconds": 0} for result in self.state.history]
        return {
            "steps": self.state.steps,
            "best_epoch": self.state.best_epoch,
            "history": history,
            "best": self.state.best,
            "optimizer": self.state.optimizer_tree,
        }


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of the loop's state, in the form of torch's holders."""

    read: Callable[[], Mapping[str, Any]]

    def state_dict(self) -> Mapping[str, Any]:
        return self.read()


def _require_tensors(model: Scaled) -> None:
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise ContractError(
                f"The model's state must consist of tensors, '{name}' is of type "
                f"{type(value).__name__}.",
                cause="A checkpoint is never a pickle, so it holds tensors only.",
                fix="Return a tensor from get_extra_state(), or register a buffer.",
            )


def _without_single(examples: Examples, batch_rows: int) -> Examples:
    """Drop the last example if it were a batch of its own, which batch norm cannot take."""
    keep = len(examples) - (len(examples) % batch_rows == 1 and len(examples) > 1)
    return Examples(x=examples.x[:keep], y=examples.y[:keep], rows=examples.rows[:keep])
