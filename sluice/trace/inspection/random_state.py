"""Preserves random states around an extra forward pass; finds generators that networks use."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import nn

from sluice.trace.inspection.random_generators import generator_types, used_names

_MAX_FUNCTIONS = 256
"""Maximum number of functions whose globals and closure variables are searched for a generator."""


@contextmanager
def preserve_random_state() -> Iterator[None]:
    """Restore the random states of torch (CPU and CUDA), Python and NumPy after the block."""
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    has_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    cuda_states = torch.cuda.get_rng_state_all() if has_cuda else []
    numpy: Any = sys.modules.get("numpy")
    numpy_state = None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        if cuda_states:
            torch.cuda.set_rng_state_all(cuda_states)
        if numpy is not None:
            numpy.random.set_state(numpy_state)


def uses_shared_generator(network: nn.Module) -> bool:
    """Return whether a network may draw from a generator that a copy of the network would share.

    The globals and closure variables that methods of the network's modules use are searched. If
    such a variable is a function, the variables that this function uses are searched, too. A
    generator in the same source file does not count if none of this code uses it.
    """
    generator_classes = generator_types()
    classes = {cls for module in network.modules() for cls in type(module).__mro__}
    pending_functions = [
        method
        for cls in classes
        if cls.__module__.split(".")[0] not in ("torch", "builtins")
        for method in vars(cls).values()
        if isinstance(method, FunctionType)
    ]
    visited = set[FunctionType]()
    while pending_functions and len(visited) < _MAX_FUNCTIONS:
        function = pending_functions.pop()
        if function in visited or function.__module__.split(".")[0] == "torch":
            continue
        visited.add(function)
        variable_names = set(used_names(function.__code__))
        used_objects = [function.__globals__.get(name) for name in variable_names]
        used_objects += [c.cell_contents for c in function.__closure__ or () if _has_content(c)]
        if any(isinstance(value, generator_classes) for value in used_objects):
            return True
        pending_functions += [value for value in used_objects if isinstance(value, FunctionType)]
    return False


def _has_content(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # the cell is empty
        return False
