"""Names of optimizers and their arguments, as settings have them: checked without loading torch."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from sluice.base.settings import nearest


def _require_value(value: Any) -> Any:
    parts = value if isinstance(value, list) else [value]
    numbers = all(isinstance(part, int | float) and not isinstance(part, bool) for part in parts)
    if not (numbers or isinstance(value, bool | str)):
        raise ValueError(
            f"must be a number, true, false, text or a list of numbers, got {type(value).__name__}"
        )
    return value


Argument = Annotated[bool | int | float | str | list[int | float], BeforeValidator(_require_value)]
"""Value of an argument of an optimizer; a list becomes a tuple."""

RESERVED = ("params", "lr", "weight_decay")
"""Arguments that do not stand in ``optimizer_arguments``: the first one are the network's
parameters, the others are settings of their own."""

CHANGING_ARGUMENTS: Mapping[str, frozenset[str]] = {
    "adamw": frozenset({"betas", "eps"}),
    "adam": frozenset({"betas", "eps"}),
    "sgd": frozenset({"momentum", "dampening"}),
    "rmsprop": frozenset({"alpha", "eps", "momentum"}),
    "nadam": frozenset({"betas", "eps", "momentum_decay"}),
    "radam": frozenset({"betas", "eps"}),
    "adagrad": frozenset({"lr_decay", "eps"}),
}
"""Short names of optimizers, and the numeric arguments that each reads again at every step."""


def require_optimizer_name(name: str) -> str:
    """Return the name, when it is a short name or has the form of an import path.

    Raises:
        ValueError: It is neither.
    """
    if name not in CHANGING_ARGUMENTS and ":" not in name:
        known = list(CHANGING_ARGUMENTS)
        raise ValueError(
            f"got the unknown optimizer '{name}'.{nearest(name, known)} Name one of "
            f"{', '.join(known)}, or an import path such as 'torch.optim:Adamax'"
        )
    return name


def require_own_arguments(arguments: dict[str, Argument]) -> dict[str, Argument]:
    """Return the arguments, when none of them is a setting of its own.

    Raises:
        ValueError: 'params', 'lr' or 'weight_decay' is among them.
    """
    places = {
        "params": "the network's parameters are passed by the training",
        "lr": "set training.learning_rate instead",
        "weight_decay": "set training.weight_decay instead",
    }
    for name in RESERVED:
        if name in arguments:
            raise ValueError(f"'{name}' is no optimizer argument here: {places[name]}")
    return arguments


def with_argument(
    arguments: Mapping[str, Argument], path: str, value: Argument
) -> dict[str, Argument]:
    """Return the arguments with another value of one of them, or of one number of a list.

    Args:
        arguments: By name.
        path: A name, or a name and an index, such as 'betas.0'.
        value: The value there.

    Raises:
        ValueError: The path has an index, and no list of the arguments has a number there.
    """
    name, dot, index = path.partition(".")
    if not dot:
        return {**arguments, name: value}
    there = arguments.get(name)
    if not _has_index(there, index) or not isinstance(value, int | float):
        raise ValueError(
            f"'optimizer_arguments.{path}' must be a number of a list, got {value!r} where "
            f"'{name}' is {there!r}: write the whole list of '{name}' under optimizer_arguments"
        )
    assert isinstance(there, list)  # as _has_index says
    at = int(index)
    return {**arguments, name: [*there[:at], value, *there[at + 1 :]]}


def _has_index(value: object, index: str) -> bool:
    return isinstance(value, list) and index.isdecimal() and int(index) < len(value)


def may_change_argument(argument: str, optimizer: str, arguments: Mapping[str, Argument]) -> bool:
    """Return whether an argument of an optimizer may change while a training runs.

    Of an optimizer by import path every number may: that its class keeps the argument in its
    parameter groups is checked when the optimizer is built.

    Args:
        argument: Its name, or its name and the index of a number, such as 'betas.0'.
        optimizer: Short name or import path.
        arguments: Those from the first epoch on.
    """
    argument, dot, index = argument.partition(".")
    if dot and not _has_index(arguments.get(argument), index):
        return False
    if argument in RESERVED or isinstance(arguments.get(argument), bool | str):
        return False
    if optimizer == "rmsprop" and argument == "momentum":
        # torch allocates the momentum buffers in the first step, and only when it is above 0.
        first = arguments.get("momentum", 0)
        return isinstance(first, int | float) and first > 0
    known = CHANGING_ARGUMENTS.get(optimizer)
    return bool(argument) if known is None else argument in known
