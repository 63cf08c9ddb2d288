"""Variants of torch's optimizers that do not import torch's compiler, to start training faster."""

import inspect
from typing import Any, TypeVar

import torch
from torch.optim import Optimizer

_O = TypeVar("_O", bound=Optimizer)
_DECORATED_METHODS = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
"""Methods of torch's optimizers with a decorator that imports the compiler."""


def make_eager(cls: type[_O]) -> type[_O]:
    """Return ``cls`` with the same operations, bits and hooks, without torch's compiler decorators.

    torch decorates some methods of optimizers so that its compiler does not trace them. The
    decorators import the compiler when the first optimizer is created. The import takes a second of
    CPU time in every training process. That is three times as long as everything else between
    ``import torch`` and the first step. The returned class calls the undecorated functions.

    Args:
        cls: An optimizer class of torch.

    Assumes:
        The optimizer is not used inside ``torch.compile``, which would trace the methods.
    """
    methods = {name: _undecorated(cls, name) for name in _DECORATED_METHODS}
    methods["step"] = torch.no_grad()(_undecorated(cls, "step"))
    return type(f"Eager{cls.__name__}", (cls,), methods | {"__module__": __name__})


def _undecorated(cls: type[Optimizer], name: str) -> Any:
    return inspect.unwrap(getattr(cls, name))


EagerAdamW = make_eager(torch.optim.AdamW)
"""``torch.optim.AdamW`` without compiler decorators; the default optimizer."""
EagerAdam = make_eager(torch.optim.Adam)
"""``torch.optim.Adam`` without compiler decorators."""
EagerLBFGS = make_eager(torch.optim.LBFGS)
"""``torch.optim.LBFGS`` without compiler decorators."""
