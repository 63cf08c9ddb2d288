"""Sources of randomness around an extra pass: each is afterwards as it was."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


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
    """Tell whether the code of a module may draw from a generator that no copy would have."""
    kinds: tuple[type, ...] = (torch.Generator, random.Random)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    for cls in {type(module) for module in network.modules()}:
        forward: Any = cls.forward
        held = list(getattr(forward, "__globals__", {}).values())
        held += [cell.cell_contents for cell in forward.__closure__ or () if _is_filled(cell)]
        if cls.__module__.split(".")[0] != "torch" and any(isinstance(v, kinds) for v in held):
            return True
    return False


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
