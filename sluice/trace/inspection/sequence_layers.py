"""Finds inputs whose first dimension is rows, and layers that may process the rows as positions."""

from typing import Any

import torch
from torch import Tensor, nn

from sluice.trace.inspection.autograd_graph import graph_nodes
from sluice.trace.inspection.padding import tensor_arguments

_MAX_LOSS_NODES = 64
"""Maximum number of autograd nodes, nearest to the loss, that are searched for a loss function."""


def find_row_input(call_args: Any, loss: Tensor) -> Tensor | None:
    """Return an input whose first dimension certainly is the rows of the batch.

    The loss must have equally many outputs and targets, and outputs of at most two dimensions. The
    second dimension of the input may be positions. Its length must differ from the number of rows,
    so that the two dimensions cannot be confused. It must also differ from the second dimension of
    the targets: if the lengths were equal, there might be one target per position.

    Args:
        call_args: Arguments of the network.
        loss: Loss before its backward pass; its graph is read, not executed.

    Returns:
        None if it is not certain for any input.
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
        saved = getattr(node, "_saved_self", None), getattr(node, "_saved_target", None)
        if isinstance(saved[0], Tensor) and isinstance(saved[1], Tensor):
            return saved[0].shape, saved[1].shape
    return None


def is_unbatched_sequence(values: Tensor) -> bool:
    """Return whether an input is a 2-D float tensor, which torch layers process as one sequence."""
    return values.dim() == 2 and values.is_floating_point()


def layers_with_positions_first(network: nn.Module, values: Tensor) -> tuple[str, ...]:
    """Return the names of layers that may process the first dimension of an input as positions.

    These are recurrent and attention layers with ``batch_first=False``. For a 2-D float tensor, all
    recurrent and attention layers are returned, because they process it as one sequence.
    """
    return tuple(
        name or type(module).__name__
        for name, module in network.named_modules()
        if isinstance(module, nn.RNNBase | nn.MultiheadAttention)
        and (is_unbatched_sequence(values) or not module.batch_first)
    )
