"""Validates optimizer names and arguments in settings, without importing torch."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from sluice.base.settings import suggest_nearest


def _require_value(value: Any) -> Any:
    items = value if isinstance(value, list) else [value]
    are_numbers = all(
        isinstance(item, int | float) and not isinstance(item, bool) for item in items
    )
    if not (are_numbers or isinstance(value, bool | str)):
        raise ValueError(
            "must be a number, true, false, a string or a list of numbers, got "
            f"{type(value).__name__}"
        )
    return value


Argument = Annotated[bool | int | float | str | list[int | float], BeforeValidator(_require_value)]
"""Value of an optimizer argument. A list is passed to the optimizer as a tuple."""

RESERVED_ARGUMENTS = ("params", "lr", "weight_decay")
"""Arguments that ``optimizer_arguments`` must not contain: the trainer passes ``params``, and the
learning rate and the weight decay have separate settings."""

CHANGEABLE_ARGUMENTS: Mapping[str, frozenset[str]] = {
    "adamw": frozenset({"betas", "eps"}),
    "adam": frozenset({"betas", "eps"}),
    "sgd": frozenset({"momentum", "dampening"}),
    "rmsprop": frozenset({"alpha", "eps", "momentum"}),
    "nadam": frozenset({"betas", "eps", "momentum_decay"}),
    "radam": frozenset({"betas", "eps"}),
    "adagrad": frozenset({"lr_decay", "eps"}),
}
"""Numeric arguments that may change during training, by short name of the optimizer. The optimizers
read these arguments at every step."""


def require_optimizer_name(name: str) -> str:
    """Return the name if it is a known short name or has the form of an import path.

    Raises:
        ValueError: The name is not a known short name and has no ':'.
    """
    if name not in CHANGEABLE_ARGUMENTS and ":" not in name:
        short_names = list(CHANGEABLE_ARGUMENTS)
        raise ValueError(
            f"unknown optimizer '{name}'.{suggest_nearest(name, short_names)} Use one of "
            f"{', '.join(short_names)}, or an import path such as 'torch.optim:Adamax'"
        )
    return name


def require_unreserved_arguments(arguments: dict[str, Argument]) -> dict[str, Argument]:
    """Return the arguments if no argument is reserved.

    Raises:
        ValueError: The arguments contain 'params', 'lr' or 'weight_decay'.
    """
    reasons = {
        "params": "the trainer passes the network's parameters",
        "lr": "set training.learning_rate instead",
        "weight_decay": "set training.weight_decay instead",
    }
    for name in RESERVED_ARGUMENTS:
        if name in arguments:
            raise ValueError(f"'{name}' cannot be set in optimizer_arguments: {reasons[name]}")
    return arguments


def with_argument(
    arguments: Mapping[str, Argument], path: str, value: Argument
) -> dict[str, Argument]:
    """Return the arguments with one argument, or one number of a list argument, replaced.

    Args:
        arguments: Arguments by name.
        path: Name of the argument, or its name and the index of a number, such as 'betas.0'.
        value: The new value.

    Raises:
        ValueError: The path has an index, but the argument is not a list that is long enough, or
            the new value is not a number.
    """
    name, dot, index = path.partition(".")
    if not dot:
        return {**arguments, name: value}
    current_value = arguments.get(name)
    if not _has_index(current_value, index) or not isinstance(value, int | float):
        raise ValueError(
            f"'optimizer_arguments.{path}' must replace a number of a list by a number, but the "
            f"new value is {value!r} and '{name}' is {current_value!r}: write the whole list of "
            f"'{name}' under optimizer_arguments"
        )
    assert isinstance(current_value, list)  # checked by _has_index
    position = int(index)
    return {**arguments, name: [*current_value[:position], value, *current_value[position + 1 :]]}


def _has_index(value: object, index: str) -> bool:
    return isinstance(value, list) and index.isdecimal() and int(index) < len(value)


def may_change_argument(argument: str, optimizer: str, arguments: Mapping[str, Argument]) -> bool:
    """Return whether an optimizer argument may change during training.

    For an optimizer given by import path, this function allows every number. Whether the class
    stores the argument in its parameter groups is checked when the optimizer is built.

    Args:
        argument: Name of the argument, or its name and the index of a number, such as 'betas.0'.
        optimizer: Short name or import path.
        arguments: Arguments of the first epoch.
    """
    argument, dot, index = argument.partition(".")
    if dot and not _has_index(arguments.get(argument), index):
        return False
    if argument in RESERVED_ARGUMENTS or isinstance(arguments.get(argument), bool | str):
        return False
    if optimizer == "rmsprop" and argument == "momentum":
        # The momentum of the first epoch must be above 0, because torch allocates the momentum
        # buffers in the first step, and only then.
        initial_momentum = arguments.get("momentum", 0)
        return isinstance(initial_momentum, int | float) and initial_momentum > 0
    changeable_names = CHANGEABLE_ARGUMENTS.get(optimizer)
    return bool(argument) if changeable_names is None else argument in changeable_names
