"""AdamW that does not load a compiler which nobody called."""

import inspect
from typing import Any

import torch


def _undecorated(name: str) -> Any:
    return inspect.unwrap(getattr(torch.optim.AdamW, name))


class EagerAdamW(torch.optim.AdamW):
    """``torch.optim.AdamW`` with the same operations, bits and hooks, outside ``torch.compile``.

    torch decorates these methods so that its compiler does not trace them. The decorators import
    the compiler when the first optimizer is made: a second of processor time in every process that
    trains, three times what all else between ``import torch`` and the first step takes. Here the
    functions below the decorators are called.

    Assumes:
        The step is not compiled: a compiler would trace into it.
    """

    add_param_group = _undecorated("add_param_group")
    zero_grad = _undecorated("zero_grad")
    state_dict = _undecorated("state_dict")
    load_state_dict = _undecorated("load_state_dict")
    step = torch.no_grad()(_undecorated("step"))
