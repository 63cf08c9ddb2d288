"""State of a training as a flat mapping of names to values, compared bit by bit.

Registered state is the content of ``state_dict``. Hidden state is what a model or a training step
keeps elsewhere: non-persistent buffers, plain attributes, random generators.
"""

import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

FlatState = dict[str, Any]
"""Leaf values by path, such as 'optimizer/state/first.weight/exp_avg'."""

_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""Attributes that every ``nn.Module`` has."""

_MAX_DEPTH = 4
"""Maximum nesting of containers and objects that is searched in a model's attributes."""

_LEAF_TYPES = (Tensor, np.ndarray, np.generic, bool, int, float, complex, str, bytes)
"""Types of the values that are compared; other objects are ignored."""


class HasState(Protocol):
    """An object with a ``state_dict`` method: an optimizer, a scheduler or a gradient scaler."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state, as torch objects do."""
        ...


@dataclass(frozen=True, slots=True)
class StateDifference:
    """First leaf that differs between two states, and the number of further leaves that differ."""

    path: str
    change: str
    """Description of the difference, such as 'was 1, is 2'."""
    num_others: int

    def __str__(self) -> str:
        more = f" ({self.num_others} more differ)" if self.num_others else ""
        return f"{self.path}: {self.change}{more}"


def state_of(holder: HasState, model: nn.Module) -> FlatState:
    """Return a copy of the state of ``holder``.

    In an optimizer's state, parameter names replace the indices of the parameters.

    Args:
        holder: Object with a ``state_dict()`` method.
        model: Model whose parameter names are used for an optimizer.
    """
    state: Any = holder.state_dict()
    if isinstance(holder, torch.optim.Optimizer) and set(state) >= {"state", "param_groups"}:
        state = dict(state) | _by_parameter_name(state, holder, model)
    return flatten(state)


def hidden_state(model: nn.Module, step: Callable[..., object]) -> FlatState:
    """Return a copy of the state that ``state_dict`` does not contain, of the model and ``step``.

    From the model: non-persistent buffers, plain attributes and random generators. From ``step``:
    only the random generators that it uses as global variables or variables of its closure.
    """
    hidden: FlatState = {}
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        non_persistent_buffers = {n: module._buffers[n] for n in module._non_persistent_buffers_set}
        plain_attributes = {
            n: value for n, value in vars(module).items() if n not in _MODULE_ATTRIBUTES
        }
        for key, value in {**non_persistent_buffers, **plain_attributes}.items():
            hidden |= _nested_state(value, f"{prefix}{key}", _MAX_DEPTH)
    if inspect.isfunction(step):
        variables = inspect.getclosurevars(step)
        for name, value in {**variables.globals, **variables.nonlocals}.items():
            state = _generator_state(value)
            if state is not None:
                hidden |= flatten(state, f"{name} of {step.__name__}()")
    return hidden


def flatten(value: Any, path: str = "") -> FlatState:
    """Return copies of the leaves of nested mappings and lists; other objects are ignored.

    >>> flatten({"a": [1, {"b": 2.0}], "c": print})
    {'a/0': 1, 'a/1/b': 2.0}
    """
    if isinstance(value, Mapping):
        items: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    elif isinstance(value, Tensor):
        return {path: value.detach().clone()}
    elif isinstance(value, np.ndarray):
        return {path: value.copy()}
    else:
        return {path: value} if isinstance(value, _LEAF_TYPES) else {}
    leaves: FlatState = {}
    for key, item in items:
        leaves |= flatten(item, f"{path}/{key}" if path else str(key))
    return leaves


def first_difference(saved: FlatState, loaded: FlatState) -> StateDifference | None:
    """Return the first leaf that only one state has or that differs in a bit; None if equal."""
    differing_paths = [
        path
        for path in dict.fromkeys([*saved, *loaded])
        if path not in saved or path not in loaded or not same_bits(saved[path], loaded[path])
    ]
    if not differing_paths:
        return None
    path = differing_paths[0]
    if path not in loaded:
        change = "was saved and is missing"
    elif path not in saved:
        change = "was not saved and is present"
    else:
        change = _describe_change(saved[path], loaded[path])
    return StateDifference(path, change, len(differing_paths) - 1)


def same_bits(one: Any, other: Any) -> bool:
    """Return whether two tensors or arrays are bit-identical, or two other leaves are equal.

    Two NaN numbers are equal.
    """
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return (
            one.shape == other.shape
            and one.dtype == other.dtype
            and bool(torch.equal(_bytes(one), _bytes(other)))
        )
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return (one.shape, one.dtype, one.tobytes()) == (other.shape, other.dtype, other.tobytes())
    if isinstance(one, Tensor | np.ndarray) or isinstance(other, Tensor | np.ndarray):
        return False
    return bool(one == other or (one != one and other != other))


def _by_parameter_name(
    state: Mapping[str, Any], optimizer: torch.optim.Optimizer, model: nn.Module
) -> dict[str, Any]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    names_by_index = {i: names.get(id(p), f"parameter {i}") for i, p in enumerate(parameters)}
    return {
        "state": {names_by_index.get(i, i): moments for i, moments in state["state"].items()},
        "param_groups": [
            {**group, "params": [names_by_index.get(i, i) for i in group["params"]]}
            for group in state["param_groups"]
        ],
    }


def _nested_state(value: Any, path: str, depth: int) -> FlatState:
    state = _generator_state(value)
    if state is not None:
        return flatten(state, f"{path} (random generator)")
    if isinstance(value, nn.Module | type) or callable(value) or depth == 0:
        return {}
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    elif isinstance(value, _LEAF_TYPES):
        return flatten(value, path)
    else:
        items = list(getattr(value, "__dict__", {}).items())
    nested: FlatState = {}
    for key, item in items:
        nested |= _nested_state(item, f"{path}/{key}", depth - 1)
    return nested


def _generator_state(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return {"state": value.get_state()}
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return {"state": value.get_state()}
    if isinstance(value, random.Random):
        return {"state": value.getstate()}
    return None


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _describe_change(saved: Any, loaded: Any) -> str:
    if not (isinstance(saved, Tensor) and isinstance(loaded, Tensor)):
        return f"was {_shorten(saved)}, is {_shorten(loaded)}"
    if saved.shape != loaded.shape or saved.dtype != loaded.dtype:
        return (
            f"was {tuple(saved.shape)} {_dtype(saved)}, is {tuple(loaded.shape)} {_dtype(loaded)}"
        )
    one, other = saved.detach().cpu().reshape(-1), loaded.detach().cpu().reshape(-1)
    width = max(1, one.element_size())
    indices = (_bytes(one) != _bytes(other)).reshape(-1, width).any(dim=1).nonzero().flatten()
    index = int(indices[0])
    position = (
        f"at [{', '.join(map(str, np.unravel_index(index, saved.shape)))}] " if saved.ndim else ""
    )
    return f"{position}was {one[index].item()!r}, is {other[index].item()!r}"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shorten(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
