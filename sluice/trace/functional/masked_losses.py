"""Finds manually masked token losses in the autograd graph of a loss."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from sluice.trace.inspection.autograd_graph import SHAPE_NODES, graph_nodes, saved_tensor
from sluice.trace.inspection.plain_tensors import is_plain_dense

_MAX_NODES_TO_MASK = 128
"""Maximum number of nodes, nearest to the loss, that are searched for a mask."""
_MAX_NODES_BEHIND_MASK = 8
"""Maximum number of nodes, from the mask towards the inputs, that are searched for the losses."""
_NEGATION = "NegBackward0"
_LOSS_NODES = ("NllLoss", "GatherBackward")
"""Prefixes of nodes that compute losses from class targets."""
_INCLUDING_MASKS = (
    ("MaskedSelectBackward0", "_saved_mask"),
    ("WhereBackward0", "_saved_condition"),
)
"""Nodes whose mask marks the included values, and the name of the saved mask."""
_EXCLUDING_MASK = ("MaskedFillBackward0", "_saved_mask")
"""Node whose mask marks the excluded values, and the name of the saved mask."""


def find_masked_targets(loss: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield class targets and a boolean mask of the targets that the loss includes, both flat.

    Args:
        loss: Loss before its backward pass; its graph is read, not executed.
    """
    for node in graph_nodes(loss, max_nodes=_MAX_NODES_TO_MASK):
        is_included = _included_mask(node)
        inputs = [input_node for input_node, _ in node.next_functions if input_node is not None]
        if is_included is None or len(inputs) != 1:
            continue
        targets = _find_targets(inputs[0])
        if targets is not None and targets.numel() == is_included.numel():
            yield targets.reshape(-1), is_included.reshape(-1)


def _included_mask(node: Any) -> Tensor | None:
    """Return the mask of the values that a node includes; None if it does not mask values."""
    name = node.name()
    for masking_name, saved_name in _INCLUDING_MASKS:
        if name == masking_name:
            mask = saved_tensor(node, saved_name)
            # ``where`` selects its second input if the condition is false. If the first input has
            # no gradient, the losses are the second input, and the condition excludes them.
            is_inverted = name.startswith("Where") and node.next_functions[0][0] is None
            return ~mask if mask is not None and is_inverted else mask
    if name == _EXCLUDING_MASK[0]:
        mask = saved_tensor(node, _EXCLUDING_MASK[1])
        return None if mask is None else ~mask
    if name != "MulBackward0":
        return None
    factors = (saved_tensor(node, saved_name) for saved_name in ("_saved_other", "_saved_self"))
    factor = next((f for f in factors if f is not None and not f.requires_grad), None)
    if factor is None or not is_plain_dense(factor) or not factor.numel():
        return None
    if not bool(((factor == 0) | (factor == 1)).all()):
        return None
    return factor != 0


def _find_targets(node: Any) -> Tensor | None:
    """Return the class targets of the losses that a node receives.

    Nodes between the losses and this node may only reshape or negate them. Return None if another
    node or too many nodes are between, or if the targets are not class ids.
    """
    for _ in range(_MAX_NODES_BEHIND_MASK):
        if node is None:
            return None
        name = node.name()
        if name.startswith(_LOSS_NODES):
            targets = saved_tensor(node, "_saved_target")
            targets = saved_tensor(node, "_saved_index") if targets is None else targets
            if targets is None or targets.is_floating_point():
                return None
            return targets.to(torch.int64)
        if name != _NEGATION and name not in SHAPE_NODES:
            return None
        node = node.next_functions[0][0]
    return None
