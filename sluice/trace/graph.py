"""What the graph behind a loss still holds: which positions attention hid, which rows were indexed.

It tells of attention written by hand as well as of torch's own. It is read, not run.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_MOST_NODES = 4096
_MOST_FOUND = 16
_HIDDEN = -1e4
"""Added to a score: less hides a position."""
_MASKS = ("_saved_attn_mask", "_saved_attn_bias")
"""Of the nodes of fused attention, which keep no weights."""

SHAPES = frozenset(
    f"{name}Backward{number}"
    for name in (
        "View", "UnsafeView", "Reshape", "ReshapeAlias", "Squeeze", "Unsqueeze", "Transpose",
        "Permute", "T", "Slice", "Select", "Index", "ToCopy", "Clone", "Alias", "Expand",
        "AsStrided", "Flatten", "Unflatten", "SwapAxes", "Cat", "Stack",
    )
    for number in (0, 1, 2)
)  # fmt: skip
"""Nodes that pass numbers on as they are."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """A table that was indexed, or looked up in, and by which rows."""

    table: nn.Parameter
    ids: Tensor


def nodes_behind(loss: Tensor, *, most: int = _MOST_NODES) -> Iterator[Any]:
    """Yield the nodes of a graph, those nearest to the loss first."""
    todo, seen = deque([loss.grad_fn]), set[Any]()
    while todo and len(seen) < most:
        node = todo.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        todo += [following for following, _ in node.next_functions]


def hidden_positions(nodes: list[Any], rows: int, positions: int) -> list[Tensor]:
    """Return what each attention hid from every query, (rows, positions).

    Args:
        nodes: Of ``nodes_behind``, before the backward pass.
        rows: Of the batch.
        positions: Keys; attention over another number of them is left out.
    """
    found = []
    for seen in _seen(nodes):
        first = seen.shape[0]
        if seen.shape[-1] != positions or (first % rows and first != 1):
            continue
        groups = 1 if first == 1 else rows
        found.append(~seen.reshape(groups, -1, positions).any(1).expand(rows, positions))
        if len(found) >= _MOST_FOUND:
            break
    return found


def _seen(nodes: list[Any]) -> Iterator[Tensor]:
    """Yield which keys each query looked at: rows, or rows and heads, first; keys last."""
    for node in nodes:
        name = node.name()
        if name in ("SoftmaxBackward0", "SafeSoftmaxBackward0"):
            weights = saved(node, "_saved_result")
            # It is told as a whole number without sign.
            dim = node._saved_dim - 2**64 if node._saved_dim >= 2**63 else node._saved_dim
            if weights is not None and weights.dim() > 1 and dim % weights.dim():
                yield (weights > 0).movedim(dim, -1)
        elif name.startswith("ScaledDotProduct"):
            masks = (saved(node, mask) for mask in _MASKS)
            added = next((mask for mask in masks if mask is not None), None)
            if added is not None and added.dim() > 1:
                yield added if added.dtype == torch.bool else added > _HIDDEN


def lookups(nodes: list[Any], kind: str = "Index") -> list[Lookup]:
    """Return the parameters that were indexed by whole numbers in their first dimension.

    Args:
        nodes: Of ``nodes_behind``, before the backward pass.
        kind: 'Index' for table[ids], 'Embedding' for the function of that name.
    """
    found: list[Lookup] = []
    for node in nodes:
        if node.name() != f"{kind}Backward0" or len(found) >= _MOST_FOUND:
            continue
        table = getattr(node.next_functions[0][0], "variable", None)
        ids = next(iter(saved_indices(node)), None)
        if not isinstance(table, nn.Parameter) or ids is None:
            continue
        if ids.numel() and ids.dtype in (torch.int64, torch.int32):
            found.append(Lookup(table, ids))
    return found


def class_lookups(nodes: list[Any]) -> list[tuple[Tensor, int]]:
    """Return by which classes the logarithms of probabilities were indexed, and how many there are.

    As in a cross-entropy that is written out: ``log_p[rows, classes]``.
    """
    found: list[tuple[Tensor, int]] = []
    for node in nodes:
        if node.name() != "IndexBackward0" or len(found) >= _MOST_FOUND:
            continue
        made = node.next_functions[0][0]
        if made is None or not made.name().startswith("LogSoftmaxBackward"):
            continue
        indices, sizes = saved_indices(node), tuple(node._saved_self_sym_sizes)
        ids = indices[-1] if len(indices) == len(sizes) == 2 else None
        if ids is not None and ids.numel() and ids.dtype in (torch.int64, torch.int32):
            found.append((ids, int(sizes[1])))
    return found


def saved(node: Any, name: str) -> Tensor | None:
    """Return a tensor that a node keeps for its backward pass; None when it has none any more."""
    try:
        held = getattr(node, name, None)
    except RuntimeError:  # freed by another backward pass, or changed in place
        return None
    return held.detach() if isinstance(held, Tensor) else None


def saved_indices(node: Any) -> tuple[Tensor | None, ...]:
    """Return what a node that looks something up was given; nothing when it has none any more."""
    try:
        indices = node._saved_indices
        return (indices,) if isinstance(indices, Tensor) else tuple(indices)
    except RuntimeError:  # as above
        return ()
