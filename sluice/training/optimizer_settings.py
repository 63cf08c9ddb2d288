"""Optimizer names and arguments in settings, validated without importing torch."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from sluice.base.settings import suggest_nearest


def _require_value(value: Any) -> Any:
    parts = value if isinstance(value, list) else [value]
    numbers = all(isinstance(part, int | float) and not isinstance(part, bool) for part in parts)
    if not (numbers or isinstance(value, bool | str)):
        raise ValueError(
            "must be a number, true, false, a string or a list of numbers, got "
            f"{type(value).__name__}"
        )
    return value


Argument = Annotated[bool | int | float | str | list[int | float], BeforeValidator(_require_value)]
"""Value of an optimizer argument; a list becomes a tuple."""

RESERVED = ("params", "lr", "weight_decay")
"""Arguments that ``optimizer_arguments`` must not contain: ``params`` are the network's parameters,
and the others are settings of their own."""

CHANGING_ARGUMENTS: Mapping[str, frozenset[str]] = {
    "adamw": frozenset({"betas", "eps"}),
    "adam": frozenset({"betas", "eps"}),
    "sgd": frozenset({"momentum", "dampening"}),
    "rmsprop": frozenset({"alpha", "eps", "momentum"}),
    "nadam": frozenset({"betas", "eps", "momentum_decay"}),
    "radam": frozenset({"betas", "eps"}),
    "adagrad": frozenset({"lr_decay", "eps"}),
}
"""Short names of optimizers, and the numeric arguments that each optimizer reads at every step."""


def require_optimizer_name(name: str) -> str:
    """Return the name if it is a short name or has the form of an import path.

    Raises:
        ValueError: It is neither.
    """
    if name not in CHANGING_ARGUMENTS and ":" not in name:
        known = list(CHANGING_ARGUMENTS)
        raise ValueError(
            f"unknown optimizer '{name}'.{suggest_nearest(name, known)} Use one of "
            f"{', '.join(known)}, or an import path such as 'torch.optim:Adamax'"
        )
    return name


def require_own_arguments(arguments: dict[str, Argument]) -> dict[str, Argument]:
    """Return the arguments if none of them is reserved.

    Raises:
        ValueError: 'params', 'lr' or 'weight_decay' is among them.
    """
    reasons = {
        "params": "the trainer passes the network's parameters",
        "lr": "set training.learning_rate instead",
        "weight_decay": "set training.weight_decay instead",
    }
    for name in RESERVED:
        if name in arguments:
            raise ValueError(f"'{name}' cannot be set in optimizer_arguments: {reasons[name]}")
    return arguments


def with_argument(
    arguments: Mapping[str, Argument], path: str, value: Argument
) -> dict[str, Argument]:
    """Return the arguments with one value, or one number of a list, replaced.

    Args:
        arguments: Arguments by name.
        path: A name, or a name and an index, such as 'betas.0'.
        value: The new value.

    Raises:
        ValueError: The path has an index, but the argument is not a list with a number at it.
    """
    name, dot, index = path.partition(".")
    if not dot:
        return {**arguments, name: value}
    current = arguments.get(name)
    if not _has_index(current, index) or not isinstance(value, int | float):
        raise ValueError(
            f"'optimizer_arguments.{path}' must be a number of a list, got {value!r} where "
            f"'{name}' is {current!r}: write the whole list of '{name}' under optimizer_arguments"
        )
    assert isinstance(current, list)  # checked by _has_index
    at = int(index)
    return {**arguments, name: [*current[:at], value, *current[at + 1 :]]}


def _has_index(value: object, index: str) -> bool:
    return isinstance(value, list) and index.isdecimal() and int(index) < len(value)


def may_change_argument(argument: str, optimizer: str, arguments: Mapping[str, Argument]) -> bool:
    """Return whether an optimizer argument may change during training.

    For an optimizer given by import path every number may change: building the optimizer checks
    that its class stores the argument in its parameter groups.

    Args:
        argument: Its name, or its name and the index of a number, such as 'betas.0'.
        optimizer: Short name or import path.
        arguments: Arguments from the first epoch on.
    """
    argument, dot, index = argument.partition(".")
    if dot and not _has_index(arguments.get(argument), index):
        return False
    if argument in RESERVED or isinstance(arguments.get(argument), bool | str):
        return False
    if optimizer == "rmsprop" and argument == "momentum":
        # torch allocates the momentum buffers in the first step, and only if momentum is above 0.
        first = arguments.get("momentum", 0)
        return isinstance(first, int | float) and first > 0
    known = CHANGING_ARGUMENTS.get(optimizer)
    return bool(argument) if known is None else argument in known
