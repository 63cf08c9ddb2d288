"""Builds the optimizer that the settings select, by short name or by import path.

Covers: import and check of the class; its arguments, also arguments that change during training;
trial steps on a 2 x 2 parameter before training starts.
Does not cover: parameter groups, learning rates and weight decay, see ``parameter_groups``.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from sluice.base.eager_optimizers import EagerAdam, EagerAdamW, make_eager
from sluice.base.errors import SettingsError
from sluice.base.imports import import_object
from sluice.base.out_of_memory import is_out_of_memory
from sluice.base.settings import suggest_nearest
from sluice.training.optimizer_settings import RESERVED_ARGUMENTS, Argument
from sluice.training.optimizer_state import restore_state, split_state
from sluice.training.settings import TrainSettings

OPTIMIZERS: Mapping[str, type[Optimizer]] = {
    "adamw": EagerAdamW,
    "adam": EagerAdam,
    "sgd": make_eager(torch.optim.SGD),
    "rmsprop": make_eager(torch.optim.RMSprop),
    "nadam": make_eager(torch.optim.NAdam),
    "radam": make_eager(torch.optim.RAdam),
    "adagrad": make_eager(torch.optim.Adagrad),
}
"""Optimizer classes of torch by the short name used in settings."""

_FUSED_BY_DEFAULT = frozenset({"adamw", "adam"})
"""Optimizers whose fused kernel is the default, because it exists for every device. The settings
can select another implementation. SGD is excluded, see ``_require_defined_momentum``."""

_IMPLEMENTATION_ARGUMENTS = frozenset({"fused", "foreach", "differentiable"})
"""Arguments of torch's optimizers that select an implementation."""

_GROUP_KEYS = frozenset({"rate_share", "has_own_decay"})
"""Keys that Sluice adds to parameter groups: the factor of the scheduled learning rate, and whether
the workload set the weight decay of the group."""

_NUM_TRIAL_STEPS = 2
"""Number of steps of a trial. The first step creates the optimizer state, which the second uses."""


def require_optimizer(settings: TrainSettings) -> None:
    """Try the optimizer on a 2 x 2 parameter, and raise if it cannot train.

    A trial uses the arguments of the first epoch, and a further trial for each change uses the
    arguments after the change. Each trial runs two steps, and stores and restores the optimizer
    state.

    Args:
        settings: Optimizer, its arguments, and the changes during training.

    Raises:
        SettingsError: The class cannot be imported, is not an optimizer, does not take an argument,
            refuses a value, needs a closure, or does not store an argument that changes during
            training in its parameter groups.
        ContractError: A checkpoint cannot store the optimizer state.
    """
    trials = [
        (arguments, _build_trial_optimizer(settings, arguments))
        for arguments in _arguments_over_time(settings)
    ]
    for arguments, optimizer in trials:
        _require_changing_arguments_in_groups(optimizer, settings)
        try:
            for _ in range(_NUM_TRIAL_STEPS):
                for parameter in optimizer.param_groups[0]["params"]:
                    parameter.grad = torch.ones_like(parameter)
                optimizer.step()
        except Exception as error:  # the class may raise anything
            raise SettingsError(
                f"The optimizer '{settings.optimizer}' cannot take a step: {_error_text(error)}.",
                cause="The trainer calls optimizer.step() with dense gradients and without a "
                "closure.",
                fix="Use another optimizer.",
            ) from error
        restore_state(_build_trial_optimizer(settings, arguments), *split_state(optimizer))


def build_optimizer(groups: list[dict[str, Any]], settings: TrainSettings) -> Optimizer:
    """Return the optimizer for the groups, with the arguments of the first epoch.

    Args:
        groups: Groups as returned by ``complete_groups``.
        settings: Optimizer, its arguments, and the changes during training.

    Raises:
        SettingsError: As for ``require_optimizer``, except errors that occur only in a step.
    """
    optimizer = _construct(groups, settings, settings.optimizer_arguments)
    for arguments in _arguments_over_time(settings)[1:]:
        # Raises for an invalid value now, instead of at the epoch of the change.
        _build_trial_optimizer(settings, arguments)
    _require_changing_arguments_in_groups(optimizer, settings)
    return optimizer


def set_changing_arguments(optimizer: Optimizer, settings: TrainSettings) -> None:
    """Set the arguments that change during training to their values in this epoch.

    Args:
        optimizer: An optimizer from ``build_optimizer``.
        settings: Settings in effect in this epoch, from ``TrainSettings.at``.
    """
    for name in _changing_arguments(settings):
        if name in settings.optimizer_arguments:
            for group in optimizer.param_groups:
                group[name] = _list_to_tuple(settings.optimizer_arguments[name])


def takes_weight_decay(settings: TrainSettings) -> bool:
    """Return whether the optimizer takes the argument ``weight_decay``.

    Raises:
        SettingsError: The class cannot be imported, or is not an optimizer.
    """
    names, accepts_kwargs = _accepted_arguments(_optimizer_class(settings.optimizer))
    return accepts_kwargs or "weight_decay" in names


def _optimizer_class(name: str) -> type[Optimizer]:
    if name in OPTIMIZERS:
        return OPTIMIZERS[name]
    imported_object = import_object(name, what="optimizer")
    # The class is checked before it is called, because a settings file must not be able to call any
    # other function.
    if not (isinstance(imported_object, type) and issubclass(imported_object, Optimizer)):
        kind = imported_object if isinstance(imported_object, type) else type(imported_object)
        raise SettingsError(
            f"The optimizer '{name}' must be a subclass of torch.optim.Optimizer, got "
            f"{kind.__module__}.{kind.__qualname__}.",
            fix="Let the class inherit from torch.optim.Optimizer, or use another optimizer.",
        )
    return imported_object


def _construct(
    groups: list[dict[str, Any]], settings: TrainSettings, arguments: Mapping[str, Argument]
) -> Optimizer:
    name, cls = settings.optimizer, _optimizer_class(settings.optimizer)
    accepted_names, accepts_kwargs = _accepted_arguments(cls)
    settable_arguments = [
        argument for argument in accepted_names if argument not in RESERVED_ARGUMENTS
    ]
    if not accepts_kwargs:
        _require_known_arguments(name, accepted_names, settable_arguments, arguments)
    passed_arguments = {argument: _list_to_tuple(value) for argument, value in arguments.items()}
    if name in _FUSED_BY_DEFAULT and not _IMPLEMENTATION_ARGUMENTS & passed_arguments.keys():
        passed_arguments["fused"] = True
    if accepts_kwargs or "weight_decay" in accepted_names:
        passed_arguments["weight_decay"] = settings.weight_decay
    _require_defined_momentum(cls, settings, passed_arguments)
    try:
        return cls(groups, lr=settings.learning_rate, **passed_arguments)  # type: ignore[call-arg]
    except Exception as error:  # the class may raise anything
        if is_out_of_memory(error):
            raise
        raise SettingsError(
            f"The optimizer '{name}' refuses its arguments: {_error_text(error)}.",
            fix="Correct training.optimizer_arguments. The optimizer takes: "
            f"{', '.join(settable_arguments) or 'none'}.",
        ) from error


def _require_defined_momentum(
    cls: type[Optimizer], settings: TrainSettings, passed_arguments: Mapping[str, Any]
) -> None:
    # The fused SGD of torch 2.13 skips a first step that overflows, and then reads uninitialised
    # momentum.
    if (
        settings.precision == "fp16"
        and passed_arguments.get("fused")
        and issubclass(cls, torch.optim.SGD)
    ):
        raise SettingsError(
            f"The optimizer '{settings.optimizer}' cannot be fused in fp16.",
            cause="torch's fused SGD reads uninitialised memory as momentum after a step whose "
            "gradient overflowed, and fp16 overflows in the first steps of most trainings.",
            fix="Remove fused from training.optimizer_arguments, or set training.precision to "
            "bf16 or fp32.",
        )


def _require_known_arguments(
    name: str,
    accepted_names: list[str],
    settable_arguments: list[str],
    arguments: Mapping[str, Argument],
) -> None:
    if "lr" not in accepted_names:
        raise SettingsError(
            f"The optimizer '{name}' must take the argument lr, but its arguments are: "
            f"{', '.join(accepted_names)}.",
            cause="The trainer sets the learning rate at every step by its schedule.",
            fix="Use another optimizer, or let the class take lr and read it from its parameter "
            "groups.",
        )
    for argument in arguments:
        if argument not in settable_arguments:
            raise SettingsError(
                f"The optimizer '{name}' does not take the argument "
                f"'{argument}'.{suggest_nearest(argument, settable_arguments)}",
                fix="Correct training.optimizer_arguments. The optimizer takes: "
                f"{', '.join(settable_arguments) or 'none'}.",
            )


def _accepted_arguments(cls: type[Optimizer]) -> tuple[list[str], bool]:
    """Return the arguments of a class, and whether ``**kwargs`` may accept other arguments.

    A class with ``**kwargs`` also has the arguments of its base classes.
    """
    names: list[str] = []
    for base in cls.__mro__[: cls.__mro__.index(Optimizer)]:
        if "__init__" not in vars(base):
            continue
        parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        kinds = {parameter.kind for parameter in parameters}
        names += [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            return names, False
    return names, True


def _arguments_over_time(settings: TrainSettings) -> list[dict[str, Argument]]:
    """Return the arguments of the first epoch, and the arguments after each change."""
    arguments = [settings.optimizer_arguments]
    for change in settings.changes:
        if change.optimizer_arguments:
            arguments.append(arguments[-1] | change.optimizer_arguments)
    return arguments


def _changing_arguments(settings: TrainSettings) -> dict[str, Argument]:
    """Return the arguments that change during training, each with its last value."""
    return {
        name: value
        for change in settings.changes
        for name, value in change.optimizer_arguments.items()
    }


def _require_changing_arguments_in_groups(optimizer: Optimizer, settings: TrainSettings) -> None:
    for name, value in _changing_arguments(settings).items():
        for group in optimizer.param_groups:
            current_value: Any = group.get(name)
            has_same_form = _is_number(value) and _is_number(current_value)
            if isinstance(value, list) and isinstance(current_value, tuple | list):
                has_same_form = len(value) == len(current_value)
            if not has_same_form:
                raise SettingsError(
                    f"The argument '{name}' of the optimizer '{settings.optimizer}' cannot change "
                    f"to {value!r} during training: the parameter groups contain "
                    f"{current_value!r}.",
                    cause="Only numbers that the class reads from its parameter groups at every "
                    "step can change.",
                    fix=f"Remove '{name}' from training.changes.",
                )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _build_trial_optimizer(settings: TrainSettings, arguments: Mapping[str, Argument]) -> Optimizer:
    group = {"params": [nn.Parameter(torch.ones(2, 2))], **dict.fromkeys(_GROUP_KEYS, 1.0)}
    return _construct([group], settings, arguments)


def _list_to_tuple(value: Argument) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _error_text(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__
