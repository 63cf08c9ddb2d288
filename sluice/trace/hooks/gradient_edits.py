"""Detects that the program changes accumulated gradients itself between two backward passes."""

from typing import Any

import torch
from torch import Tensor

from sluice.trace.thread_state import ThreadState

_PARAMETERS_PER_OPTIMIZER = 2
_MAX_SUMMED_NUMEL = 2**14
"""Largest gradient whose sum is stored."""


def snapshot_gradients(tracer: Any) -> None:
    """Store the state of some gradients after the second and later backward passes of a step."""
    thread = tracer.local.thread
    if len(thread.losses) < 2:
        return
    thread.gradient_snapshots = [
        (
            parameter,
            parameter.grad,
            parameter.grad._version,
            parameter.grad.detach().sum() if parameter.numel() <= _MAX_SUMMED_NUMEL else None,
        )
        for entry in tracer.objects.optimizers.entries
        for group in entry.groups[:1]
        for parameter in group["params"][:_PARAMETERS_PER_OPTIMIZER]
        if parameter.grad is not None
    ]


def detect_gradient_edit(thread: ThreadState) -> None:
    """Check whether the program changed these gradients since, for example by dividing them."""
    thread.has_gradient_edit = thread.has_gradient_edit or any(
        parameter.grad is not grad or (grad._version != version and _values_differ(grad, total))
        for parameter, grad, version, total in thread.gradient_snapshots
    )


def _values_differ(grad: Tensor, total: Tensor | None) -> bool:
    """Return whether a gradient that was written to changed; a division by 1 does not change it."""
    return total is None or not torch.equal(grad.detach().sum(), total)
