"""Finds inputs with rows in the first dimension, and layers that may process rows as positions."""

from typing import Any

import torch
from torch import Tensor, nn

from sluice.trace.inspection.autograd_graph import graph_nodes
from sluice.trace.inspection.padding import tensor_arguments

_MAX_LOSS_NODES = 64
"""Maximum number of autograd nodes, nearest to the loss, that are searched for a loss function."""


def find_row_input(call_args: Any, loss: Tensor) -> Tensor | None:
    """Return an input whose first dimension certainly contains the rows of the batch.

    The input of the loss must have at most two dimensions, and as many rows as the targets. The
    second dimension of the network's input may contain positions. Its length must differ from the
    number of rows, so that the two dimensions cannot be confused. This length must also differ from
    the second dimension of the targets, because there might be one target per position.

    Args:
        call_args: Arguments of the network.
        loss: Loss before its backward pass; its graph is read, not executed.

    Returns:
        None if there is no such input.
    """
    shapes = _find_loss_shapes(loss)
    if shapes is None:
        return None
    output_shape, target_shape = shapes
    num_rows = target_shape[0] if target_shape else 0
    if not num_rows or len(output_shape) > 2 or output_shape[:1] != target_shape[:1]:
        return None
    for values in tensor_arguments(call_args):
        if values.dim() not in (2, 3) or values.shape[0] != num_rows:
            continue
        length = values.shape[1]
        if length != num_rows and target_shape[1:2] != (length,):
            return values
    return None


def _find_loss_shapes(loss: Tensor) -> tuple[torch.Size, torch.Size] | None:
    """Return the shapes of the input and the targets that the nearest loss function saved."""
    for node in graph_nodes(loss, max_nodes=_MAX_LOSS_NODES):
        loss_input = getattr(node, "_saved_self", None)
        target = getattr(node, "_saved_target", None)
        if isinstance(loss_input, Tensor) and isinstance(target, Tensor):
            return loss_input.shape, target.shape
    return None


def is_unbatched_sequence(values: Tensor) -> bool:
    """Return whether an input is a 2-D float tensor, which torch layers process as one sequence."""
    return values.dim() == 2 and values.is_floating_point()


def layers_with_positions_first(network: nn.Module, values: Tensor) -> tuple[str, ...]:
    """Return the names of layers that may process the first dimension of an input as positions.

    Recurrent and attention layers with ``batch_first=False`` are returned. For a 2-D float tensor,
    all recurrent and attention layers are returned, because they process it as one sequence.
    """
    return tuple(
        name or type(module).__name__
        for name, module in network.named_modules()
        if isinstance(module, nn.RNNBase | nn.MultiheadAttention)
        and (is_unbatched_sequence(values) or not module.batch_first)
    )
