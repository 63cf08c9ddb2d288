"""What may vary about training."""

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from sluice.base.settings import Settings
from sluice.training.optimizer_settings import (
    Argument,
    may_change_argument,
    require_optimizer_name,
    require_own_arguments,
)

Precision = Literal["fp32", "bf16", "fp16"]
DeviceChoice = Literal["auto", "cpu", "cuda"]


_Arguments = dict[str, Argument]


def _is_default_optimizer(name: str) -> bool:
    return name == "adamw"


def _is_empty(arguments: _Arguments) -> bool:
    return not arguments


def _is_none(value: float | None) -> bool:
    return value is None


class Change(Settings):
    """New values from an epoch on; what is not named stays as it was."""

    from_epoch: int = Field(ge=1, description="Epochs done before it.")
    learning_rate: float | None = Field(
        None, gt=0, le=100, description="Peak learning rate; the schedule's shape stays."
    )
    weight_decay: float | None = Field(None, ge=0, le=10, description="Weight decay.")
    clip_norm: float | None = Field(None, gt=0, description="Largest global gradient norm.")
    optimizer_arguments: _Arguments = Field(
        {},
        exclude_if=_is_empty,
        description="Numeric arguments of the optimizer, such as momentum; those that are not "
        "named stay.",
    )
    dropout: float | None = Field(
        None,
        ge=0,
        lt=1,
        exclude_if=_is_none,
        description="Rate of the network's dropout, model.dropout until then; for 'gru', 'lstm', "
        "'slstm', 'transformer', and networks of your own with a method set_dropout(rate).",
    )

    @property
    def values(self) -> dict[str, Any]:
        """The named values, by the setting they replace."""
        return self.model_dump(exclude={"from_epoch"}, exclude_none=True)

    @property
    def paths(self) -> tuple[str, ...]:
        """Dotted paths of the settings that it changes."""
        arguments = (f"training.optimizer_arguments.{name}" for name in self.optimizer_arguments)
        plain = (f"training.{name}" for name in self.values if name in _OF_TRAINING)
        return (*plain, *arguments, *(("model.dropout",) if self.dropout is not None else ()))

    def merged(self, later: "Change") -> "Change":
        """Return this change with the values of another one of the same epoch in their place."""
        arguments = self.optimizer_arguments | later.optimizer_arguments
        values = self.values | later.values
        if arguments:
            values["optimizer_arguments"] = arguments
        return Change(from_epoch=self.from_epoch, **values)

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.values:
            raise ValueError(
                f"the change after epoch {self.from_epoch} must name one of {', '.join(CHANGING)}"
            )
        return self

    @field_validator("optimizer_arguments")
    @classmethod
    def _own_arguments(cls, arguments: _Arguments) -> _Arguments:
        return require_own_arguments(arguments)


CHANGING = tuple(name for name in Change.model_fields if name != "from_epoch")
"""Settings that may change in mid-training: neither shapes nor steps per epoch depend on them."""


_OF_TRAINING = frozenset(CHANGING) - {"optimizer_arguments", "dropout"}

_WITH_DROPOUT = frozenset({"gru", "lstm", "slstm", "transformer"})
"""Built-in architectures whose dropout rate may change in mid-training."""

NO_EFFECT = frozenset({"checkpoint_every_epochs", "loader_workers", "trace"})
"""Training settings that change no bit of a result."""


class TrainSettings(Settings):
    """How one (seed, fold) unit is fitted."""

    max_epochs: int = Field(25, ge=1, le=100_000, description="Full passes over the train rows.")
    patience_epochs: int = Field(
        8, ge=1, description="Stop after this many epochs without a better validation loss."
    )
    batch_rows: int = Field(128, ge=1, description="Examples per optimizer step.")
    micro_batch_rows: int | None = Field(
        None,
        ge=1,
        description="Examples computed at once; a larger batch is done in parts, with the gradient "
        "of the whole. None for the whole batch at once.",
    )
    optimizer: str = Field(
        "adamw",
        exclude_if=_is_default_optimizer,
        description="'adamw', 'adam', 'sgd', 'rmsprop', 'nadam', 'radam', 'adagrad', or "
        "'module:Class' of any torch.optim.Optimizer.",
    )
    optimizer_arguments: _Arguments = Field(
        {},
        exclude_if=_is_empty,
        description="Arguments of the optimizer's class by name, such as betas, momentum or eps; "
        "those that are not named have the class's defaults.",
    )
    learning_rate: float = Field(2e-3, gt=0, le=100, description="Peak learning rate.")
    weight_decay: float = Field(
        1e-2,
        ge=0,
        le=10,
        description="Weight decay, as the optimizer defines it: decoupled from the gradient for "
        "'adamw', added to it for most others. An optimizer without one has none.",
    )
    warmup_share: float = Field(
        0.05, ge=0, lt=1, description="Share of all steps over which the rate rises from 0."
    )
    final_rate_share: float = Field(
        0.05, ge=0, le=1, description="Rate at the end of the cosine, as a share of the peak."
    )
    clip_norm: float = Field(5.0, gt=0, description="Largest global gradient norm.")
    changes: tuple[Change, ...] = Field(
        (),
        strict=False,
        description="What changes while it trains, in the order of epochs; so a schedule that a "
        "search found is trained again.",
    )
    checkpoint_every_epochs: int | None = Field(
        None,
        ge=1,
        description="Epochs between checkpoints; when not set, as often as takes 2 % of the time.",
    )
    precision: Precision = Field(
        "fp32",
        description="Number format of the forward pass; fp16 goes back to fp32 when five steps in "
        "a row overflow. Validation and test are always in fp32.",
    )
    recompute_activations: bool = Field(
        False, description="Compute layers again in the backward pass: less memory, more time."
    )
    device: DeviceChoice = Field(
        "auto", description="Where to train; 'auto' takes a GPU where there is one."
    )
    loader_workers: int = Field(
        0,
        ge=0,
        le=64,
        description="Processes that gather batches ahead; 0 for none. It changes no bit.",
    )
    trace: bool = Field(
        True, description="Watch the training for silent faults. It changes no bit."
    )

    @field_validator("optimizer")
    @classmethod
    def _known_optimizer(cls, name: str) -> str:
        return require_optimizer_name(name)

    @field_validator("optimizer_arguments")
    @classmethod
    def _own_arguments(cls, arguments: _Arguments) -> _Arguments:
        return require_own_arguments(arguments)

    @model_validator(mode="after")
    def _changes_in_order(self) -> Self:
        epochs = [change.from_epoch for change in self.changes]
        if epochs != sorted(set(epochs)):
            raise ValueError(f"changes must have ascending from_epoch, got {epochs}")
        if epochs and not epochs[-1] < self.max_epochs:
            raise ValueError(
                f"changes must lie before the last epoch: from_epoch {epochs[-1]} must be below "
                f"max_epochs {self.max_epochs}"
            )
        return self

    @model_validator(mode="after")
    def _changes_what_may_change(self) -> Self:
        for change in self.changes:
            for name in change.optimizer_arguments:
                if not may_change(f"training.optimizer_arguments.{name}", self):
                    raise ValueError(
                        f"the change after epoch {change.from_epoch} sets '{name}' of the "
                        f"optimizer '{self.optimizer}', which cannot change in mid-training"
                    )
        return self

    def at(self, epoch: int) -> "TrainSettings":
        """Return the settings in effect in an epoch, counted from 1."""
        values: dict[str, Any] = {}
        arguments = self.optimizer_arguments
        for change in self.changes:
            if change.from_epoch < epoch:
                values |= {n: value for n, value in change.values.items() if n in _OF_TRAINING}
                arguments = arguments | change.optimizer_arguments
        if arguments != self.optimizer_arguments:
            values["optimizer_arguments"] = arguments
        return self.model_copy(update=values) if values else self

    def dropout_at(self, epoch: int) -> float | None:
        """Return the dropout rate that changes have set for an epoch; None where none has."""
        rates = [c.dropout for c in self.changes if c.from_epoch < epoch and c.dropout is not None]
        return rates[-1] if rates else None


def may_change(path: str, settings: TrainSettings, architecture: str = "") -> bool:
    """Return whether a setting may take another value while a training runs.

    Args:
        path: Dotted path, such as 'training.learning_rate', 'model.dropout' or
            'training.optimizer_arguments.momentum'.
        settings: Name the optimizer and its arguments from the first epoch on.
        architecture: Of the model settings; without it 'model.dropout' may not change.
    """
    if path == "model.dropout":
        return architecture in _WITH_DROPOUT
    group, _, name = path.partition(".")
    if group != "training":
        return False
    field, _, argument = name.partition(".")
    if field == "optimizer_arguments":
        return may_change_argument(argument, settings.optimizer, settings.optimizer_arguments)
    return name in _OF_TRAINING
