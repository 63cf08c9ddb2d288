"""Settings of a training, and their changes from a later epoch on."""

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from sluice.base.settings import Settings
from sluice.training.optimizer_settings import (
    Argument,
    may_change_argument,
    require_optimizer_name,
    require_unreserved_arguments,
)

Precision = Literal["fp32", "bf16", "fp16"]
DeviceChoice = Literal["auto", "cpu", "cuda"]


_Arguments = dict[str, Argument]


# The functions below omit the default of a setting that was added later from the serialized
# settings, so that the setting does not change the digests of existing configurations.


def _is_default_optimizer(name: str) -> bool:
    return name == "adamw"


def _is_empty(arguments: _Arguments) -> bool:
    return not arguments


def _is_none(value: float | None) -> bool:
    return value is None


def _is_off(value: bool) -> bool:
    return not value


class TrainingChange(Settings):
    """New values of settings after a number of epochs; all other settings keep their values."""

    from_epoch: int = Field(
        ge=1, description="Number of epochs after which the change takes effect."
    )
    learning_rate: float | None = Field(
        None,
        gt=0,
        le=100,
        description="Peak learning rate; the shape of the schedule does not change.",
    )
    weight_decay: float | None = Field(None, ge=0, le=10, description="Weight decay.")
    clip_norm: float | None = Field(
        None, gt=0, description="Maximum global gradient norm; a larger gradient is scaled down."
    )
    optimizer_arguments: _Arguments = Field(
        {},
        exclude_if=_is_empty,
        description="Numeric arguments of the optimizer, such as momentum; other arguments keep "
        "their values.",
    )
    dropout: float | None = Field(
        None,
        ge=0,
        lt=1,
        exclude_if=_is_none,
        description="Dropout rate of the network in place of model.dropout. It can be set for "
        "built-in networks with dropout, and for your own networks with a method "
        "set_dropout(rate).",
    )

    @property
    def values(self) -> dict[str, Any]:
        """The new values, by name of the setting."""
        return self.model_dump(exclude={"from_epoch"}, exclude_none=True)

    @property
    def paths(self) -> tuple[str, ...]:
        """Dotted paths of the changed settings."""
        number_paths = (f"training.{name}" for name in self.values if name in _NUMBER_SETTINGS)
        argument_paths = (
            f"training.optimizer_arguments.{name}" for name in self.optimizer_arguments
        )
        dropout_paths = ("model.dropout",) if self.dropout is not None else ()
        return (*number_paths, *argument_paths, *dropout_paths)

    def merge_with(self, later: "TrainingChange") -> "TrainingChange":
        """Return this change, updated with the values of another change at the same epoch."""
        arguments = self.optimizer_arguments | later.optimizer_arguments
        values = self.values | later.values
        if arguments:
            values["optimizer_arguments"] = arguments
        return TrainingChange(from_epoch=self.from_epoch, **values)

    @model_validator(mode="after")
    def _require_a_change(self) -> Self:
        if not self.values:
            raise ValueError(
                f"the change after epoch {self.from_epoch} must set at least one of "
                f"{', '.join(CHANGEABLE_SETTINGS)}"
            )
        return self

    @field_validator("optimizer_arguments")
    @classmethod
    def _require_unreserved(cls, arguments: _Arguments) -> _Arguments:
        return require_unreserved_arguments(arguments)


CHANGEABLE_SETTINGS = tuple(name for name in TrainingChange.model_fields if name != "from_epoch")
"""Settings that may change during training. Neither tensor shapes nor the number of steps depend on
these settings."""


_NUMBER_SETTINGS = frozenset(CHANGEABLE_SETTINGS) - {"optimizer_arguments", "dropout"}
"""Settings that may change and are fields of ``TrainSettings`` with a single number."""

_ARCHITECTURES_WITH_DROPOUT = frozenset({"mlp", "gru", "lstm", "slstm", "transformer"})
"""Names of built-in architectures with dropout, whose rate a search may change during training."""

SETTINGS_WITHOUT_EFFECT = frozenset({"checkpoint_every_epochs", "loader_workers", "trace"})
"""Training settings that do not affect the result, not even its rounding."""


class TrainSettings(Settings):
    """Settings of the training of a fold run."""

    max_epochs: int = Field(
        25, ge=1, le=100_000, description="Maximum number of passes over the train rows."
    )
    patience_epochs: int = Field(
        8,
        ge=1,
        description="Number of epochs without a new best epoch after which training stops.",
    )
    batch_rows: int = Field(128, ge=1, description="Number of examples per optimizer step.")
    micro_batch_rows: int | None = Field(
        None,
        ge=1,
        description="Number of examples per forward pass; the gradients of a larger batch are "
        "accumulated over micro-batches. None for the whole batch.",
    )
    optimizer: str = Field(
        "adamw",
        exclude_if=_is_default_optimizer,
        description="'adamw', 'adam', 'sgd', 'rmsprop', 'nadam', 'radam', 'adagrad', or the "
        "import path 'module:Class' of any torch.optim.Optimizer.",
    )
    optimizer_arguments: _Arguments = Field(
        {},
        exclude_if=_is_empty,
        description="Arguments of the optimizer's class by name, such as betas, momentum or eps; "
        "other arguments have the defaults of the class.",
    )
    learning_rate: float = Field(2e-3, gt=0, le=100, description="Peak learning rate.")
    weight_decay: float = Field(
        1e-2,
        ge=0,
        le=10,
        description="Weight decay, as the optimizer defines it: decoupled from the gradient for "
        "'adamw', added to the gradient for most other optimizers. An optimizer without weight "
        "decay ignores the default, and refuses any other value above 0.",
    )
    warmup_share: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="Share of all steps over which the learning rate increases to its peak.",
    )
    final_rate_share: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Learning rate at the end of the cosine, as a share of the peak.",
    )
    clip_norm: float = Field(
        5.0, gt=0, description="Maximum global gradient norm; a larger gradient is scaled down."
    )
    changes: tuple[TrainingChange, ...] = Field(
        (),
        strict=False,
        description="Changes of settings during training, in the order of epochs, such as a "
        "schedule found by a search.",
    )
    checkpoint_every_epochs: int | None = Field(
        None,
        ge=1,
        description="Number of epochs between checkpoints; if not set, checkpoints are written as "
        "often as possible with an overhead of at most 2 %, also during an epoch.",
    )
    bucket_by_length: bool = Field(
        False,
        exclude_if=_is_off,
        description="Whether to put examples of similar lengths into a batch, which saves padding. "
        "The row "
        "source must return the lengths of its examples. The order still depends only on the seed "
        "and the epoch.",
    )
    precision: Precision = Field(
        "fp32",
        description="Number format of the forward and backward pass; fp16 falls back to fp32 after "
        "five consecutive overflows. Validation and test always use fp32.",
    )
    recompute_activations: bool = Field(
        False,
        description="Recompute activations in the backward pass (activation "
        "checkpointing): less memory, more time.",
    )
    device: DeviceChoice = Field(
        "auto", description="Device of the training; 'auto' uses a GPU if available."
    )
    loader_workers: int = Field(
        0,
        ge=0,
        le=64,
        description="Number of processes that gather batches in advance; 0 for none. Does not "
        "affect the result.",
    )
    trace: bool = Field(
        True,
        description="Trace the training to detect silent faults. Does not affect the result.",
    )

    @field_validator("optimizer")
    @classmethod
    def _require_known_optimizer(cls, name: str) -> str:
        return require_optimizer_name(name)

    @field_validator("optimizer_arguments")
    @classmethod
    def _require_unreserved(cls, arguments: _Arguments) -> _Arguments:
        return require_unreserved_arguments(arguments)

    @model_validator(mode="after")
    def _require_ascending_epochs(self) -> Self:
        epochs = [change.from_epoch for change in self.changes]
        if epochs != sorted(set(epochs)):
            raise ValueError(f"changes must have ascending from_epoch, got {epochs}")
        if epochs and not epochs[-1] < self.max_epochs:
            raise ValueError(
                f"changes must be before the last epoch: from_epoch {epochs[-1]} must be below "
                f"max_epochs {self.max_epochs}"
            )
        return self

    @model_validator(mode="after")
    def _require_changeable_settings(self) -> Self:
        for change in self.changes:
            for name in change.optimizer_arguments:
                if not may_change(f"training.optimizer_arguments.{name}", self):
                    raise ValueError(
                        f"the change after epoch {change.from_epoch} sets '{name}' of the "
                        f"optimizer '{self.optimizer}', which cannot change during training"
                    )
        return self

    def at(self, epoch: int) -> "TrainSettings":
        """Return the settings in effect in an epoch, counted from 1."""
        values: dict[str, Any] = {}
        arguments = self.optimizer_arguments
        for change in self.changes:
            if change.from_epoch < epoch:
                values |= {n: value for n, value in change.values.items() if n in _NUMBER_SETTINGS}
                arguments = arguments | change.optimizer_arguments
        if arguments != self.optimizer_arguments:
            values["optimizer_arguments"] = arguments
        return self.model_copy(update=values) if values else self

    def dropout_at(self, epoch: int) -> float | None:
        """Return the dropout rate that changes set for an epoch; None if no change sets it."""
        past_changes = [change for change in self.changes if change.from_epoch < epoch]
        rates = [change.dropout for change in past_changes if change.dropout is not None]
        return rates[-1] if rates else None


def may_change(path: str, settings: TrainSettings, architecture: str = "") -> bool:
    """Return whether a setting may change during training.

    Args:
        path: Dotted path, such as 'training.learning_rate', 'model.dropout' or
            'training.optimizer_arguments.momentum'.
        settings: Optimizer, and its arguments in the first epoch.
        architecture: Name of the architecture. 'model.dropout' may change only for a built-in
            architecture with dropout.
    """
    if path == "model.dropout":
        return architecture in _ARCHITECTURES_WITH_DROPOUT
    group, _, name = path.partition(".")
    if group != "training":
        return False
    field, _, argument = name.partition(".")
    if field == "optimizer_arguments":
        return may_change_argument(argument, settings.optimizer, settings.optimizer_arguments)
    return name in _NUMBER_SETTINGS
