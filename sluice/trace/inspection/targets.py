"""Detects whether the targets of a loss are the input, shifted by one position or unshifted."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from sluice.trace.inspection.autograd_graph import graph_nodes, signed_integer
from sluice.trace.inspection.padding import is_token_batch, tensor_arguments

_MAX_TARGET_NODES = 64
"""Maximum number of autograd nodes, nearest to the loss, that are searched for targets."""
_MAX_REACHED_NODES = 2048
"""Maximum number of autograd nodes that are searched for outputs of the network."""

_MIN_POSITIONS = 8
"""Minimum number of positions of a series."""

_MIN_MATCH_FRACTION = 0.98
"""Minimum fraction of targets that equal the input token at the next position, or at the same
position for a copied input. Ignored targets do not count."""

_MAX_COPY_FRACTION = 0.9
"""Maximum fraction of next-token targets that equal the input token at the same position. In copies
of the input, and in text that repeats one token, the fraction is larger."""


def find_next_token_input(loss: Tensor, call_args: Any) -> tuple[Tensor, int] | None:
    """Return the input tokens whose successors are the targets of a loss.

    Args:
        loss: Loss before its backward pass; its graph is read, not executed.
        call_args: Arguments of the network.

    Returns:
        The tokens, and the dimension that contains their positions (0 or 1); None if no input
        matches.
    """
    ids = _find_token_input(loss, call_args, _is_shifted)
    if ids is not None:
        return ids, 1
    ids = _find_token_input(loss, call_args, _is_shifted_transposed)
    return None if ids is None else (ids, 0)


def find_copied_input(loss: Tensor, call_args: Any) -> Tensor | None:
    """Return the input tokens that are the targets of a loss; None if no input matches."""
    return _find_token_input(loss, call_args, _is_unshifted)


def _find_token_input(
    loss: Tensor, call_args: Any, matches: Callable[[Tensor, Tensor], bool]
) -> Tensor | None:
    targets = _class_targets(loss)
    for ids in tensor_arguments(call_args):
        if is_token_batch(ids) and any(matches(ids.detach(), t) for t in targets):
            return ids
    return None


def _class_targets(loss: Tensor) -> list[Tensor]:
    """Return the class targets that the nodes nearest to the loss saved.

    Each tensor is flattened. Ignored and negative targets are replaced by -1.
    """
    targets: list[Tensor] = []
    for node in graph_nodes(loss, max_nodes=_MAX_TARGET_NODES):
        name = type(node).__name__
        if name.startswith(("NllLoss", "GatherBackward")):
            target: Any = getattr(node, "_saved_target", None)
            target = getattr(node, "_saved_index", None) if target is None else target
            if isinstance(target, Tensor) and target.numel() and not target.is_floating_point():
                ids = target.detach().reshape(-1).to(torch.int64)
                ignore_index = signed_integer(getattr(node, "_saved_ignore_index", -100))
                targets.append(torch.where((ids == ignore_index) | (ids < 0), -1, ids))
    return targets


def find_reached_outputs(loss: Tensor, output_nodes: Sequence[Any]) -> list[int]:
    """Return the indices of the outputs that a loss depends on.

    Args:
        loss: Loss before its backward pass; its graph is read, not executed.
        output_nodes: Autograd nodes of all outputs; None for an output without a graph.
    """
    index_by_node = {node: i for i, node in enumerate(output_nodes) if node is not None}
    indices = (
        index_by_node[node]
        for node in graph_nodes(loss, max_nodes=_MAX_REACHED_NODES)
        if node in index_by_node
    )
    return sorted(islice(indices, len(index_by_node)))


def find_shifted_input(inputs: Sequence[Any], targets: Any) -> Any:
    """Return the reference to the input whose value at position t + 1 equals target t.

    Args:
        inputs: Weak references to the inputs of the network.
        targets: Floating-point targets, (rows, positions) or (rows, positions, 1).

    Returns:
        None if no input matches, or if the targets are not a series.
    """
    if type(targets) is not Tensor or not _is_series(targets):
        return None
    for ref in inputs:
        values = ref()
        if values is None or not _is_series(values) or values.shape != targets.shape:
            continue
        if torch.equal(values[:, 1:], targets[:, :-1]) and not torch.equal(values, targets):
            return ref
    return None


def _is_series(values: Tensor) -> bool:
    """Return whether values are floats, (rows, positions) or (rows, positions, 1).

    A series has at least 8 positions.
    """
    if values.dim() == 3 and values.shape[2] == 1:
        values = values[..., 0]
    return values.dim() == 2 and values.shape[1] >= _MIN_POSITIONS and values.is_floating_point()


def _is_unshifted(ids: Tensor, targets: Tensor) -> bool:
    """Return whether the targets are the tokens themselves."""
    if targets.numel() != ids.numel():
        return False
    is_included = targets >= 0
    is_same = (targets == ids.reshape(-1)) & is_included
    return 0 < int(is_included.sum()) * _MIN_MATCH_FRACTION <= int(is_same.sum())


def _is_shifted_transposed(ids: Tensor, targets: Tensor) -> bool:
    """Return whether the targets are the next tokens, for tokens of shape (positions, rows)."""
    num_rows = ids.shape[1]
    if targets.numel() % num_rows:
        return False
    return _is_shifted(ids.T, targets.reshape(-1, num_rows).T.reshape(-1))


def _is_shifted(ids: Tensor, targets: Tensor) -> bool:
    """Return whether the targets are the next tokens.

    There may be a target for the last token of each row, or not.
    """
    num_rows, length = ids.shape
    for num_targets in (length, length - 1):
        if targets.numel() != num_rows * num_targets:
            continue
        row_targets = targets.reshape(num_rows, num_targets)[:, : length - 1]
        is_included = row_targets >= 0
        num_included = max(int(is_included.sum()), 1)
        next_fraction = int(((row_targets == ids[:, 1:]) & is_included).sum()) / num_included
        same_fraction = int(((row_targets == ids[:, :-1]) & is_included).sum()) / num_included
        if next_fraction >= _MIN_MATCH_FRACTION and same_fraction <= _MAX_COPY_FRACTION:
            return True
    return False
