"""Whether a loss is a mean over rows as it came, told by the autograd graph behind it."""

from typing import Any

import torch
from torch import Tensor

from sluice.trace.lane import Lane

_MEAN = 1
"""Of ``torch.nn._reduction``."""
_MOST_TERMS = 8


def is_raw_mean(loss: Tensor, lane: Lane) -> bool:
    """Tell whether a loss is a mean, or a sum with a mean in it, that nothing divides.

    A loss scale does not count. A mean that is multiplied or divided by anything is none.
    """
    for ref in reversed(lane.means):
        if ref() is loss:
            return True
    node: Any = loss.grad_fn
    if node is None:
        return False
    if lane.has_scaled:
        if node.name() != "MulBackward0":
            return False
        node = node.next_functions[0][0]
    return _is_mean(node)


def _is_mean(node: Any) -> bool:
    waiting = [node]
    for _ in range(_MOST_TERMS):
        if not waiting:
            return False
        found = waiting.pop()
        if found is None:
            continue
        name = found.name()
        if name in ("DivBackward0", "MulBackward0") and _is_one(found):
            waiting.append(found.next_functions[0][0])
            continue
        if name == "MeanBackward0" or getattr(found, "_saved_reduction", None) == _MEAN:
            return True
        if name in ("AddBackward0", "SubBackward0"):
            waiting += [term for term, _ in found.next_functions]
    return False


def _is_one(node: Any) -> bool:
    """Tell whether something is multiplied or divided by the number 1, as a number of batches."""
    other = getattr(node, "_saved_other", None)
    if node.next_functions[1][0] is not None or not isinstance(other, Tensor):
        return False
    return not other.dim() and other.is_cpu and float(other) == 1


_PROBES = 2
_MOST_SUMMED = 2**14
"""Numbers of a gradient whose sum is kept."""


def seal(tracer: Any) -> None:
    """Remember what some gradients are after the second backward pass of a step, or a later one."""
    lane = tracer.local.lane
    if len(lane.losses) < 2:
        return
    lane.sealed = [
        (
            parameter,
            parameter.grad,
            parameter.grad._version,
            parameter.grad.detach().sum() if parameter.numel() <= _MOST_SUMMED else None,
        )
        for entry in tracer.inventory.optimizers.entries
        for group in entry.groups[:1]
        for parameter in group["params"][:_PROBES]
        if parameter.grad is not None
    ]


def check_seal(lane: Lane) -> None:
    """See whether the program itself changed these gradients since, as to divide them by hand."""
    lane.is_edited = lane.is_edited or any(
        parameter.grad is not grad or (grad._version != version and _is_other(grad, total))
        for parameter, grad, version, total in lane.sealed
    )


def _is_other(grad: Tensor, total: Tensor | None) -> bool:
    """Tell whether a gradient that was written to has other numbers: a division by 1 gives none."""
    return total is None or not torch.equal(grad.detach().sum(), total)
