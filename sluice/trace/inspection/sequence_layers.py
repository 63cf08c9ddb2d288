"""Finds inputs with rows in the first dimension, and layers that may take it for positions."""

from typing import Any

from torch import Tensor, nn

from sluice.trace.inspection.padding import tensor_arguments


def find_row_input(call_args: Any, output: Tensor, targets: Tensor) -> Tensor | None:
    """Return the input whose first dimension is the rows of the batch; None if none certainly is.

    Each row must have one output and one target, so that neither has positions. The second
    dimension of the input, which may be positions, must have another length.

    Args:
        call_args: Arguments of the network.
        output: First argument of the loss.
        targets: Targets of the loss.
    """
    num_rows = targets.shape[0] if targets.dim() else 0
    if not num_rows or output.dim() > 2 or output.shape[:1] != targets.shape[:1]:
        return None
    for values in tensor_arguments(call_args):
        if values.dim() not in (2, 3) or values.shape[0] != num_rows:
            continue
        length = values.shape[1]
        if length != num_rows and targets.shape[1:2] != (length,):
            return values
    return None


def layers_with_positions_first(network: nn.Module, values: Tensor) -> tuple[str, ...]:
    """Return the names of layers that may take the first dimension of an input for positions.

    These are recurrent and attention layers with ``batch_first=False``. If the input is a matrix of
    numbers, they are all recurrent and attention layers, because torch takes a matrix for one
    sequence.
    """
    is_matrix = values.dim() == 2 and values.is_floating_point()
    return tuple(
        name or type(module).__name__
        for name, module in network.named_modules()
        if isinstance(module, nn.RNNBase | nn.MultiheadAttention)
        and (is_matrix or not module.batch_first)
    )
