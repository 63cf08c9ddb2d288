"""Finds the plain tensors in the arguments and outputs of a module."""

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

TENSOR_TYPES = (Tensor, nn.Parameter)
"""Plain tensor types. Subclasses are excluded: operations on a distributed tensor, for example,
have another meaning."""

_MAX_TENSORS = 4
"""Maximum number of tensors of a call to which references are returned."""


def is_plain_dense(value: Any) -> bool:
    """Return whether a value is a plain tensor that is not sparse, nested, quantized or meta."""
    return (
        type(value) in TENSOR_TYPES
        and value.layout == torch.strided
        and not (value.is_nested or value.is_quantized or value.is_meta)
    )


def is_8bit_float(tensor: Tensor) -> bool:
    """Return whether a tensor contains 8-bit floats, for which torch has few operations."""
    return tensor.is_floating_point() and tensor.element_size() == 1


def first_tensor(output: Any) -> Tensor | None:
    """Return the first plain dense tensor in an output or nested container; None if it has none."""
    if isinstance(output, Tensor):
        return output if is_plain_dense(output) else None
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, list | tuple):
        for item in output:
            tensor = first_tensor(item)
            if tensor is not None:
                return tensor
    return None


def tensor_refs(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple["weakref.ref[Tensor]", ...]:
    """Return weak references to up to 4 plain dense tensors of a call.

    Tensors in containers are only referenced if no argument is a tensor itself.
    """
    if (
        len(args) == 1
        and not kwargs
        and type(args[0]) is Tensor
        and args[0].layout is torch.strided
        and not (args[0].is_nested or args[0].is_quantized or args[0].is_meta)
    ):  # the usual call, without the cost of a search
        return (weakref.ref(args[0]),)
    values = [*args, *kwargs.values()]
    tensors = [value for value in values if isinstance(value, Tensor)]
    return tuple(map(weakref.ref, islice(_plain_tensors(tensors or values), _MAX_TENSORS)))


def _plain_tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            if first_tensor(value) is not None:
                yield value
        elif isinstance(value, Mapping):
            yield from _plain_tensors(value.values())
        elif isinstance(value, list | tuple):
            yield from _plain_tensors(value)
