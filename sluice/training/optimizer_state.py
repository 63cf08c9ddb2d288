"""Converts the state of any optimizer to tensors and plain JSON for a checkpoint, and back."""

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from sluice.base.errors import ContractError

_KEYS_FROM_SETTINGS = frozenset({"params", "lr", "weight_decay", "rate_share", "has_own_decay"})
"""Keys of a parameter group whose values come from the settings and not from the checkpoint."""

_GROUPS_KEY = "param_groups"

_NUMBER_TYPES = (bool, int, float)


def split_state(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of an optimizer's state by name, and all other values as JSON.

    A value of a parameter group, such as a step count, is included only if it is not an argument of
    the class. Arguments are set from the settings when training resumes.

    Returns:
        The live tensors, by 'parameter index/name', and a JSON tree that refers to them by name.

    Raises:
        ContractError: The state contains a value that is not a tensor, a number, or a list or
            mapping of these.
    """
    tensors: dict[str, Tensor] = {}
    state_dict = optimizer.state_dict()
    excluded_keys = _KEYS_FROM_SETTINGS | _argument_names(type(optimizer).__mro__)
    groups = [
        {key: value for key, value in group.items() if key not in excluded_keys}
        for group in state_dict[_GROUPS_KEY]
    ]
    other_values = {k: value for k, value in state_dict.items() if k not in ("state", _GROUPS_KEY)}
    class_name = type(optimizer).__name__
    tree = {
        # A string in the state raises an error, because torch casts loaded state to the dtype of
        # the parameter, which fails for a string.
        "state": _encode(state_dict["state"], "", tensors, class_name, plain_types=_NUMBER_TYPES),
        "groups": _encode(groups, "groups", tensors, class_name),
        "rest": _encode(other_values, "rest", tensors, class_name),
    }
    return tensors, tree


def restore_state(
    optimizer: Optimizer, tensors: Mapping[str, Tensor], tree: Mapping[str, Any]
) -> None:
    """Load copies of the tensors and the values of ``split_state`` into a new optimizer."""
    groups = optimizer.state_dict()[_GROUPS_KEY]
    for group, values in zip(groups, _decode(tree["groups"], tensors), strict=True):
        group.update(values)
    state = {"state": _decode(tree["state"], tensors), _GROUPS_KEY: groups}
    optimizer.load_state_dict(_decode(tree["rest"], tensors) | state)


@functools.cache
def _argument_names(bases: tuple[type, ...]) -> frozenset[str]:
    return frozenset(
        name
        for base in bases
        if "__init__" in vars(base)
        for name in inspect.signature(vars(base)["__init__"]).parameters
    )


def _encode(
    value: Any,
    path: str,
    tensors: dict[str, Tensor],
    class_name: str,
    *,
    plain_types: tuple[type, ...] = (*_NUMBER_TYPES, str),
) -> Any:
    if isinstance(value, Tensor):
        tensors[path] = value
        return {"tensor": path}
    if value is None or isinstance(value, plain_types):
        return {"value": value}
    prefix = f"{path}/" if path else ""
    if isinstance(value, Mapping) and all(isinstance(key, int | str) for key in value):
        return {
            "mapping": [
                [key, _encode(item, f"{prefix}{key}", tensors, class_name, plain_types=plain_types)]
                for key, item in value.items()
            ]
        }
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {
            kind: [
                _encode(item, f"{prefix}{index}", tensors, class_name, plain_types=plain_types)
                for index, item in enumerate(value)
            ]
        }
    raise ContractError(
        f"The state of the optimizer {class_name} must consist of tensors, numbers, and lists or "
        f"mappings of these, got {type(value).__module__}.{type(value).__qualname__} at '{path}'.",
        cause="Checkpoints are written without pickle, so they cannot contain arbitrary objects.",
        fix="Store the value as a tensor or a number, or use another optimizer.",
    )


def _decode(node: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    ((kind, content),) = node.items()
    match kind:
        case "tensor":
            return tensors[content].clone()
        case "mapping":
            return {key: _decode(item, tensors) for key, item in content}
        case "list":
            return [_decode(item, tensors) for item in content]
        case "tuple":
            return tuple(_decode(item, tensors) for item in content)
        case _:
            return content
