"""torch's AdamW without the compiler, which the first optimizer of a process imports otherwise."""

import inspect
from typing import Any

import torch


class AdamW(torch.optim.AdamW):
    """``torch.optim.AdamW``, bit for bit.

    torch marks five methods for its compiler. Whoever calls one first waits for the compiler's
    import, over a second of processor time in every process that trains a unit, though nothing is
    compiled here. These are torch's own methods without the mark.
    """

    add_param_group = inspect.unwrap(torch.optim.AdamW.add_param_group)
    state_dict = inspect.unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.AdamW.load_state_dict)
    zero_grad = inspect.unwrap(torch.optim.AdamW.zero_grad)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Move the parameters by their gradients."""
        return _STEP(self, closure)


_STEP = inspect.unwrap(torch.optim.AdamW.step)
