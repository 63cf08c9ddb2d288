"""Check that a checkpoint of the workload restores everything the training needs."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sluice.base.errors import ContractError, TrainingFailed
from sluice.base.seeding import deterministic
from sluice.config.poc_settings import PocSettings
from sluice.failfast.checkpoints.resumption import StoppableTraining, check_resumption
from sluice.failfast.learning.example_sampling import sample_evenly
from sluice.failfast.learning.instantiation import too_few_examples
from sluice.findings.check_outcome import CheckOutcome
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.training.checkpoint import load_checkpoint, save_checkpoint
from sluice.training.device import resolve_device
from sluice.training.loop import EpochResult, TrainState, predict, train
from sluice.training.parameter_groups import complete_groups
from sluice.training.settings import TrainSettings
from sluice.workloads.examples import Examples
from sluice.workloads.prepare_model import prepare_model
from sluice.workloads.workload import Workload

_SCHEDULE_EPOCHS = 3
"""Length of the learning-rate schedule [epochs]. Only the first two epochs run, so the learning
rate does not reach the low values at the end of the schedule."""

_SUBJECT = {"check": "checkpoint"}
"""Subject of the checkpoints of this check; see ``save_checkpoint``."""


def check_checkpoint(
    workload: Workload,
    model_settings: ModelSettings,
    training: TrainSettings,
    examples: Examples,
    settings: PocSettings,
    *,
    seed: int,
    folder: Path,
) -> CheckOutcome:
    """Train, save, load into a new model and continue; compare with an uninterrupted run.

    One epoch is trained before the checkpoint is saved and one epoch after it, with the real
    training loop and real checkpoint files. The new model is initialised with another seed, so that
    a state that is not restored is detected.

    Args:
        workload: Builds the model and defines the losses.
        model_settings: Architecture and size.
        training: Settings of the real training; only the number of epochs is changed.
        examples: Train examples of a fold.
        settings: Size of the data subset.
        seed: Base seed.
        folder: An existing folder on the disk of the real checkpoints; temporary files in it are
            removed.

    Raises:
        Exception: Any exception of the model's or the loss's own code.

    Cost:
        At most four epochs on ``checkpoint_rows`` examples, and one checkpoint.
    """
    if len(examples) < 2:
        return too_few_examples(len(examples), 2)
    sample = _drop_single_batch(
        sample_evenly(examples, settings.checkpoint_rows), training.batch_rows
    )
    short_training = training.model_copy(
        update={"max_epochs": _SCHEDULE_EPOCHS, "patience_epochs": _SCHEDULE_EPOCHS}
    )

    def start() -> StoppableTraining:
        # The seed differs at every call, because check_resumption seeds the global generators.
        model_seed = int(torch.randint(2**62, ()))
        model = prepare_model(workload, model_settings, sample, seed=model_seed)
        _require_tensors(model)
        groups = complete_groups(workload.parameter_groups(model.network), short_training)
        return _EpochTraining(
            workload, model, groups, short_training, sample, seed
        ).as_stoppable_training()

    try:
        with deterministic():
            return check_resumption(start, num_steps=1, seed=seed, folder=folder)
    except TrainingFailed as error:
        return CheckOutcome(
            outcome="insufficient",
            summary=f"No checkpoint could be checked: {error.what}",
            fault="learning rate too high",
            cause=error.cause,
            fix=error.fix,
        )


@dataclass(slots=True)
class _EpochTraining:
    """The real training loop as a ``StoppableTraining`` whose step is one epoch."""

    workload: Workload
    model: Scaled
    groups: list[dict[str, Any]]
    settings: TrainSettings
    examples: Examples
    seed: int
    state: TrainState | None = None
    epochs: Iterator[EpochResult] | None = None

    def as_stoppable_training(self) -> StoppableTraining:
        return StoppableTraining(
            model=self.model,
            step=self.step,
            predict=lambda: predict(self.model, self.examples.x),
            save=self.save,
            load=self.load,
            states={
                "optimizer": _StateHolder(self._optimizer_state),
                "random generators": _StateHolder(lambda: self.state.rng if self.state else {}),
                "progress": _StateHolder(self._progress),
            },
        )

    def step(self) -> float:
        if self.epochs is None:
            self.epochs = train(
                self.model,
                self.workload.loss,
                self.workload.losses,
                self.examples,
                self.examples,
                self.settings,
                seed=self.seed,
                groups=self.groups,
                augment=self.workload.augmentation,
                resume=self.state,
                on_state=self._store_state,
            )
        return next(self.epochs).train_loss

    def save(self, path: Path) -> None:
        assert self.state is not None
        save_checkpoint(path, self.state, subject=_SUBJECT)

    def load(self, path: Path) -> None:
        state = load_checkpoint(path, subject=_SUBJECT).state
        if state is None:
            raise ContractError(
                f"There is no valid checkpoint in {path}.",
                cause="The file is incomplete or was changed.",
                fix="Check the disk.",
            )
        self.state = state
        self.model.load_state_dict(state.model)
        # Move the model to the training's device: another device rounds predictions differently.
        self.model.to(resolve_device(self.settings.device))

    def _store_state(self, state: TrainState) -> None:
        self.state = state

    def _optimizer_state(self) -> dict[str, Tensor]:
        """Return the optimizer's state by parameter name."""
        if self.state is None:
            return {}
        names = {id(p): name for name, p in self.model.network.named_parameters()}
        ordered_names = [names.get(id(p), "?") for group in self.groups for p in group["params"]]
        state_by_name = {}
        for key, tensor in self.state.optimizer.items():
            index, _, moment = key.partition("/")
            # The index is not a number for an optimizer's tensors that belong to no parameter.
            name = ordered_names[int(index)] if index.isdigit() else index
            state_by_name[f"{name}/{moment}"] = tensor
        return state_by_name

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
class _StateHolder:
    """One part of the loop's state, which ``state_dict`` returns as for objects of torch."""

    read_state: Callable[[], Mapping[str, Any]]

    def state_dict(self) -> Mapping[str, Any]:
        return self.read_state()


def _require_tensors(model: Scaled) -> None:
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise ContractError(
                f"The model's state must consist of tensors, but '{name}' is of type "
                f"{type(value).__name__}.",
                cause="A checkpoint is not a pickle, so it can contain only tensors.",
                fix="Return a tensor from get_extra_state(), or register a buffer.",
            )


def _drop_single_batch(examples: Examples, batch_rows: int) -> Examples:
    """Drop the last example if it would be a batch of one, which batch norm does not accept."""
    num_kept = len(examples) - (len(examples) % batch_rows == 1 and len(examples) > 1)
    return examples.take(np.arange(num_kept))
