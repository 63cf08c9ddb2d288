"""Losses of single tokens that a mask leaves out by hand, told by the graph behind the loss."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from sluice.trace.graph import SHAPES, nodes_behind, saved

_MOST_NODES, _MOST_HOPS = 128, 8
_SIGN = "NegBackward0"
_MADE = ("NllLoss", "GatherBackward")
_KEPT = (("MaskedSelectBackward0", "_saved_mask"), ("WhereBackward0", "_saved_condition"))
"""Where a mask says what counts, and its name there."""
_DROPPED = ("MaskedFillBackward0", "_saved_mask")
"""And where it says what does not."""


def masked_targets(loss: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield class numbers and which of them count, both flat.

    Args:
        loss: Before its backward pass; its graph is read, not run.
    """
    for node in nodes_behind(loss, most=_MOST_NODES):
        counts = _counts(node)
        learning = [part for part, _ in node.next_functions if part is not None]
        if counts is None or len(learning) != 1:
            continue
        targets = _targets(learning[0])
        if targets is not None and targets.numel() == counts.numel():
            yield targets.reshape(-1), counts.reshape(-1)


def _counts(node: Any) -> Tensor | None:
    """Return the mask of a node: a factor of nothing but 0 and 1, or a choice."""
    name = node.name()
    for kind, held in _KEPT:
        if name == kind:
            mask = saved(node, held)
            is_other = kind.startswith("Where") and node.next_functions[0][0] is None
            return None if mask is None else ~mask if is_other else mask
    if name == _DROPPED[0]:
        mask = saved(node, _DROPPED[1])
        return None if mask is None else ~mask
    if name != "MulBackward0":
        return None
    factors = (saved(node, held) for held in ("_saved_other", "_saved_self"))
    factor = next((f for f in factors if f is not None and not f.requires_grad), None)
    if factor is None or not factor.numel() or not bool(((factor == 0) | (factor == 1)).all()):
        return None
    return factor != 0


def _targets(node: Any) -> Tensor | None:
    """Return the class numbers of the losses that a node made, before shape and sign changed."""
    for _ in range(_MOST_HOPS):
        if node is None:
            return None
        name = node.name()
        if name.startswith(_MADE):
            held = saved(node, "_saved_target")
            found = saved(node, "_saved_index") if held is None else held
            return None if found is None or found.is_floating_point() else found.to(torch.int64)
        if name != _SIGN and name not in SHAPES:
            return None
        node = node.next_functions[0][0]
    return None
