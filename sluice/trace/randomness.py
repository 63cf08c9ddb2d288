"""Sources of randomness around an extra pass: each is afterwards as it was."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn

_MOST_FUNCTIONS = 256


@contextmanager
def kept() -> Iterator[None]:
    """Put back the random states of the process: torch's on every device, Python's, numpy's."""
    ours, python = torch.get_rng_state(), random.getstate()
    has_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    theirs = torch.cuda.get_rng_state_all() if has_cuda else []
    numpy: Any = sys.modules.get("numpy")
    state = None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(ours)
        random.setstate(python)
        if theirs:
            torch.cuda.set_rng_state_all(theirs)
        if numpy is not None:
            numpy.random.set_state(state)


def has_own_generator(network: nn.Module) -> bool:
    """Tell whether the code of a module may draw from a generator that no copy would have.

    Asked are the names that its methods use, and the functions that these call: a generator that
    stands beside it in the same file, for the batches, is none of its own.
    """
    kinds: tuple[type, ...] = (torch.Generator, random.Random)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    classes = {cls for module in network.modules() for cls in type(module).__mro__}
    todo = [
        method
        for cls in classes
        if cls.__module__.split(".")[0] not in ("torch", "builtins")
        for method in vars(cls).values()
        if isinstance(method, FunctionType)
    ]
    seen = set[FunctionType]()
    while todo and len(seen) < _MOST_FUNCTIONS:
        function = todo.pop()
        if function in seen or function.__module__.split(".")[0] == "torch":
            continue
        seen.add(function)
        used = [function.__globals__.get(name) for name in _names_in(function.__code__)]
        used += [c.cell_contents for c in function.__closure__ or () if _is_filled(c)]
        if any(isinstance(value, kinds) for value in used):
            return True
        todo += [value for value in used if isinstance(value, FunctionType)]
    return False


def _names_in(code: CodeType) -> set[str]:
    """Return the names that some code asks for, that of functions inside of it, too."""
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return set(code.co_names).union(*map(_names_in, inner))


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
