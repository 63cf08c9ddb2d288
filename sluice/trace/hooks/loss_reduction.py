"""Detects from the autograd graph whether a loss is a mean over the batch without any scaling."""

from typing import Any

from torch import Tensor

from sluice.trace.thread_state import ThreadState

_MEAN_REDUCTION = 1
"""Value of the mean reduction in ``torch.nn._reduction``."""
_MAX_NODES = 8
"""Maximum number of autograd nodes that are searched for a mean."""


def is_unscaled_mean(loss: Tensor, thread: ThreadState) -> bool:
    """Return whether a loss is a mean without any scaling, or a sum that contains such a mean.

    The scale of a ``GradScaler`` is ignored. A factor or divisor of 1 is ignored if it is a number,
    or a scalar CPU tensor to the right of the operator. Any other factor or divisor is a scaling,
    such as the number of accumulation steps.
    """
    for ref in reversed(thread.loss_calls.mean_loss_refs):
        if ref() is loss:
            return True
    node: Any = loss.grad_fn
    if node is None:
        return False
    if thread.backward.is_scaled:
        if node.name() != "MulBackward0":
            return False
        node = node.next_functions[0][0]
    return _contains_mean(node)


def _contains_mean(node: Any) -> bool:
    pending_nodes = [node]
    for _ in range(_MAX_NODES):
        if not pending_nodes:
            return False
        node = pending_nodes.pop()
        if node is None:
            continue
        name = node.name()
        if name in ("DivBackward0", "MulBackward0") and _is_scaled_by_one(node):
            pending_nodes.append(node.next_functions[0][0])
            continue
        if name == "MeanBackward0" or getattr(node, "_saved_reduction", None) == _MEAN_REDUCTION:
            return True
        if name in ("AddBackward0", "SubBackward0"):
            pending_nodes += [term for term, _ in node.next_functions]
    return False


def _is_scaled_by_one(node: Any) -> bool:
    """Return whether a node multiplies or divides by 1, as ``loss / num_accumulated`` may do."""
    factor = getattr(node, "_saved_other", None)
    if node.next_functions[1][0] is not None or not isinstance(factor, Tensor):
        return False
    return not factor.dim() and factor.is_cpu and float(factor) == 1
