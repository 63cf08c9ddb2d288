"""From settings to an optimizer: one of torch's by short name, or any class by import path.

Covers: the class, checked before it is called; its arguments and those that change in mid-training;
one step on two numbers, before a training has spent anything.
Does not cover: parameter groups, rates and decay, which are in ``parameter_groups``.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from sluice.base.errors import SettingsError
from sluice.base.imports import import_named
from sluice.base.out_of_memory import is_out_of_memory
from sluice.base.settings import nearest
from sluice.training.eager_optimizers import EagerAdamW, eager
from sluice.training.optimizer_settings import RESERVED, Argument
from sluice.training.optimizer_state import restore_state, split_state
from sluice.training.settings import TrainSettings

OPTIMIZERS: Mapping[str, type[Optimizer]] = {
    "adamw": EagerAdamW,
    "adam": eager(torch.optim.Adam),
    "sgd": eager(torch.optim.SGD),
    "rmsprop": eager(torch.optim.RMSprop),
    "nadam": eager(torch.optim.NAdam),
    "radam": eager(torch.optim.RAdam),
    "adagrad": eager(torch.optim.Adagrad),
}
"""Classes of torch by the short name used in settings."""

_FUSED = frozenset({"adamw", "adam"})
"""Those with one kernel for a whole step on every device, which is used unless settings say how.
Not SGD: see ``_require_defined_momentum``."""

_IMPLEMENTATIONS = frozenset({"fused", "foreach", "differentiable"})

_GROUP_KEYS = frozenset({"rate_share", "own_decay"})

_PROBE_STEPS = 2
"""The first step makes the state, the second one reads it."""


def require_optimizer(settings: TrainSettings) -> None:
    """Build the optimizer for a 2 x 2 parameter, let it take steps, and store and restore it.

    Args:
        settings: Name the optimizer, its arguments, and what changes in mid-training.

    Raises:
        SettingsError: The class does not import, is no optimizer, does not take an argument,
            refuses a value, needs a closure, or does not keep in its groups what is to change.
        ContractError: Its state holds what a checkpoint cannot.
    """
    over_time = _arguments_over_time(settings)
    for arguments, optimizer in [(each, _probe(settings, each)) for each in over_time]:
        _require_changing_in_groups(optimizer, settings)
        try:
            for _ in range(_PROBE_STEPS):
                for parameter in optimizer.param_groups[0]["params"]:
                    parameter.grad = torch.ones_like(parameter)
                optimizer.step()
        except Exception as error:  # whatever the class raises
            raise SettingsError(
                f"The optimizer '{settings.optimizer}' cannot take a step: {_said(error)}.",
                cause="It is stepped as optimizer.step(), with dense gradients and no closure.",
                fix="Name another optimizer.",
            ) from error
        restore_state(_probe(settings, arguments), *split_state(optimizer))


def build_optimizer(groups: list[dict[str, Any]], settings: TrainSettings) -> Optimizer:
    """Return the optimizer over the groups, with its arguments from the first epoch on.

    Args:
        groups: As ``listed_groups`` returns them.
        settings: Name the optimizer, its arguments, and what changes in mid-training.

    Raises:
        SettingsError: As ``require_optimizer``, but for what only a step shows.
    """
    optimizer = _construct(groups, settings, settings.optimizer_arguments)
    for arguments in _arguments_over_time(settings)[1:]:
        _probe(settings, arguments)  # refuses a value now, not at the epoch of the change
    _require_changing_in_groups(optimizer, settings)
    return optimizer


def set_arguments(optimizer: Optimizer, settings: TrainSettings) -> None:
    """Set the arguments that change in mid-training to their values in effect.

    Args:
        optimizer: Of ``build_optimizer``.
        settings: Those in effect in this epoch, from ``TrainSettings.at``.
    """
    for name in _changing(settings):
        if name in settings.optimizer_arguments:
            for group in optimizer.param_groups:
                group[name] = _as_passed(settings.optimizer_arguments[name])


def takes_decay(settings: TrainSettings) -> bool:
    """Return whether the optimizer has a weight decay.

    Raises:
        SettingsError: The class does not import, or is no optimizer.
    """
    names, is_open = _accepted(_optimizer_class(settings.optimizer))
    return is_open or "weight_decay" in names


def _optimizer_class(name: str) -> type[Optimizer]:
    if name in OPTIMIZERS:
        return OPTIMIZERS[name]
    found = import_named(name, what="optimizer")
    # It is checked before it is called: any other callable would run with a file's arguments.
    if not (isinstance(found, type) and issubclass(found, Optimizer)):
        kind = found if isinstance(found, type) else type(found)
        raise SettingsError(
            f"The optimizer '{name}' must be a class of torch.optim.Optimizer, it is one of type "
            f"{kind.__module__}.{kind.__qualname__}.",
            fix="Let the class inherit from torch.optim.Optimizer, or name another one.",
        )
    return found


def _construct(
    groups: list[dict[str, Any]], settings: TrainSettings, arguments: Mapping[str, Argument]
) -> Optimizer:
    name, cls = settings.optimizer, _optimizer_class(settings.optimizer)
    names, is_open = _accepted(cls)
    own = [each for each in names if each not in RESERVED]
    takes = f"It takes: {', '.join(own) or 'none'}."
    if not is_open:
        _require_taken(name, names, own, arguments)
    given = {each: _as_passed(value) for each, value in arguments.items()}
    if name in _FUSED and not _IMPLEMENTATIONS & given.keys():
        given["fused"] = True
    if is_open or "weight_decay" in names:
        given["weight_decay"] = settings.weight_decay
    _require_defined_momentum(cls, settings, given)
    try:
        return cls(groups, lr=settings.learning_rate, **given)  # type: ignore[call-arg]
    except Exception as error:  # whatever the class raises
        if is_out_of_memory(error):
            raise
        raise SettingsError(
            f"The optimizer '{name}' refuses its arguments: {_said(error)}.",
            fix=f"Correct training.optimizer_arguments. {takes}",
        ) from error


def _require_defined_momentum(
    cls: type[Optimizer], settings: TrainSettings, given: Mapping[str, Any]
) -> None:
    # Where the first step overflows, torch 2.13 leaves it out and keeps uninitialised momentum.
    if settings.precision == "fp16" and given.get("fused") and issubclass(cls, torch.optim.SGD):
        raise SettingsError(
            f"The optimizer '{settings.optimizer}' cannot be fused in fp16.",
            cause="torch's fused SGD reads uninitialised memory as momentum after a step whose "
            "gradient overflowed, and fp16 overflows in the first steps of most trainings.",
            fix="Take fused out of training.optimizer_arguments, or set training.precision to "
            "bf16 or fp32.",
        )


def _require_taken(
    name: str, names: list[str], own: list[str], arguments: Mapping[str, Argument]
) -> None:
    if "lr" not in names:
        raise SettingsError(
            f"The optimizer '{name}' must take the argument lr, it takes: {', '.join(names)}.",
            cause="The learning rate follows the schedule of the training.",
            fix="Name another optimizer, or let the class take lr and read it from its groups.",
        )
    for each in arguments:
        if each not in own:
            raise SettingsError(
                f"The optimizer '{name}' does not take the argument '{each}'.{nearest(each, own)}",
                fix=f"Correct training.optimizer_arguments. It takes: {', '.join(own) or 'none'}.",
            )


def _accepted(cls: type[Optimizer]) -> tuple[list[str], bool]:
    """Return the arguments of a class, and whether it may take others that it does not name."""
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
    """Return the arguments from the first epoch on, and after each change of them."""
    found = [settings.optimizer_arguments]
    for change in settings.changes:
        if change.optimizer_arguments:
            found.append(found[-1] | change.optimizer_arguments)
    return found


def _changing(settings: TrainSettings) -> dict[str, Argument]:
    """Return a value of every argument that changes in mid-training."""
    return {
        name: value
        for change in settings.changes
        for name, value in change.optimizer_arguments.items()
    }


def _require_changing_in_groups(optimizer: Optimizer, settings: TrainSettings) -> None:
    for name, value in _changing(settings).items():
        for group in optimizer.param_groups:
            now: Any = group.get(name)
            alike = _is_number(value) and _is_number(now)
            if isinstance(value, list) and isinstance(now, tuple | list):
                alike = len(value) == len(now)
            if not alike:
                raise SettingsError(
                    f"The argument '{name}' of the optimizer '{settings.optimizer}' cannot change "
                    f"to {value!r} in mid-training, its parameter groups hold {now!r}.",
                    cause="Only numbers that the class reads from its parameter groups at every "
                    "step can change.",
                    fix="Take it out of training.changes.",
                )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _probe(settings: TrainSettings, arguments: Mapping[str, Argument]) -> Optimizer:
    group = {"params": [nn.Parameter(torch.ones(2, 2))], **dict.fromkeys(_GROUP_KEYS, 1.0)}
    return _construct([group], settings, arguments)


def _as_passed(value: Argument) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _said(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__
