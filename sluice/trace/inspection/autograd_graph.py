"""Reads attention masks and the indices of lookups from the autograd graph of a loss.

Attention may use a function of torch or be written manually. The graph is read, not executed.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_MAX_NODES = 4096
"""Maximum number of nodes of a graph that are read. The nodes nearest to the loss are read."""
_MAX_RESULTS = 16
"""Maximum number of masks that are returned, and maximum number of lookups of each kind."""
_MASK_THRESHOLD = -1e4
"""A position counts as masked if the value of an additive mask is at most this threshold."""
_MASK_ATTRIBUTES = ("_saved_attn_mask", "_saved_attn_bias")
"""Attributes that contain the mask in nodes of fused attention. Such nodes save no attention
weights."""

SHAPE_NODES = frozenset(
    f"{name}Backward{number}"
    for name in (
        "View", "UnsafeView", "Reshape", "ReshapeAlias", "Squeeze", "Unsqueeze", "Transpose",
        "Permute", "T", "Slice", "Select", "Index", "ToCopy", "Clone", "Alias", "Expand",
        "AsStrided", "Flatten", "Unflatten", "SwapAxes", "Cat", "Stack",
    )
    for number in (0, 1, 2)
)  # fmt: skip
"""Nodes that change the shape or location of values, but not the values."""


@dataclass(frozen=True, slots=True)
class TableLookup:
    """A parameter that was indexed in its first dimension, and the indices."""

    table: nn.Parameter
    ids: Tensor


def graph_nodes(loss: Tensor, *, max_nodes: int = _MAX_NODES) -> Iterator[Any]:
    """Yield the nodes of the graph of a loss, breadth-first from the loss."""
    pending_nodes, visited = deque([loss.grad_fn]), set[Any]()
    while pending_nodes and len(visited) < max_nodes:
        node = pending_nodes.popleft()
        if node is None or node in visited:
            continue
        visited.add(node)
        yield node
        pending_nodes += [source for source, _ in node.next_functions]


def masked_key_positions(nodes: list[Any], num_rows: int, num_keys: int) -> list[Tensor]:
    """Return for each attention layer a bool tensor (rows, keys): keys masked for all queries.

    Args:
        nodes: Nodes from ``graph_nodes``, before the backward pass.
        num_rows: Number of rows in the batch.
        num_keys: Number of keys; attention over another number of keys is skipped.
    """
    masks = []
    for attended in _attended_keys(nodes):
        first_size = attended.shape[0]  # rows, rows x heads, or 1 if all rows share the mask
        if attended.shape[-1] != num_keys or (first_size % num_rows and first_size != 1):
            continue
        num_masks = 1 if first_size == 1 else num_rows
        is_attended = attended.reshape(num_masks, -1, num_keys).any(1)
        masks.append(~is_attended.expand(num_rows, num_keys))
        if len(masks) >= _MAX_RESULTS:
            break
    return masks


def _attended_keys(nodes: list[Any]) -> Iterator[Tensor]:
    """Yield for each attention layer a mask of the keys that each query attends to.

    The shape of the mask is (rows or rows x heads or 1, ..., keys).
    """
    for node in nodes:
        name = node.name()
        if name in ("SoftmaxBackward0", "SafeSoftmaxBackward0"):
            attention_weights = saved_tensor(node, "_saved_result")
            dim = signed_integer(node._saved_dim)
            # A softmax over the first dimension is skipped: this dimension usually contains rows.
            if (
                attention_weights is not None
                and attention_weights.dim() > 1
                and dim % attention_weights.dim()
            ):
                yield (attention_weights > 0).movedim(dim, -1)
        elif name.startswith("ScaledDotProduct"):
            masks = (saved_tensor(node, attribute) for attribute in _MASK_ATTRIBUTES)
            mask = next((mask for mask in masks if mask is not None), None)
            if mask is not None and mask.dim() > 1:
                yield mask if mask.dtype == torch.bool else mask > _MASK_THRESHOLD


def find_lookups(nodes: list[Any], kind: str = "Index") -> list[TableLookup]:
    """Return the parameters that were indexed by integers in their first dimension, with the ids.

    Args:
        nodes: Nodes from ``graph_nodes``, before the backward pass.
        kind: 'Index' for ``table[ids]``, 'Embedding' for ``F.embedding``.
    """
    lookups: list[TableLookup] = []
    for node in nodes:
        if node.name() != f"{kind}Backward0" or len(lookups) >= _MAX_RESULTS:
            continue
        table = getattr(node.next_functions[0][0], "variable", None)
        ids = next(iter(saved_indices(node)), None)
        if not isinstance(table, nn.Parameter) or ids is None:
            continue
        if ids.numel() and ids.dtype in (torch.int64, torch.int32):
            lookups.append(TableLookup(table, ids))
    return lookups


def find_class_lookups(nodes: list[Any]) -> list[tuple[Tensor, int]]:
    """Return the class indices of each lookup in log-probabilities, and the number of classes.

    A manually written cross-entropy contains such a lookup: ``log_p[rows, classes]``.
    """
    lookups: list[tuple[Tensor, int]] = []
    for node in nodes:
        if node.name() != "IndexBackward0" or len(lookups) >= _MAX_RESULTS:
            continue
        source = node.next_functions[0][0]
        if source is None or not source.name().startswith("LogSoftmaxBackward"):
            continue
        indices, sizes = saved_indices(node), tuple(node._saved_self_sym_sizes)
        ids = indices[-1] if len(indices) == len(sizes) == 2 else None
        if ids is not None and ids.numel() and ids.dtype in (torch.int64, torch.int32):
            lookups.append((ids, int(sizes[1])))
    return lookups


def signed_integer(saved: int) -> int:
    """Return a signed integer that a node saved as unsigned, for example -1 as 2**64 - 1."""
    return saved - 2**64 if saved >= 2**63 else saved


def output_shape(node: Any, output_index: int = 0) -> tuple[int, ...]:
    """Return the shape of an output of a node; () if the shape is unknown."""
    metadata: Any = getattr(node, "_input_metadata", ())  # one item per output of the node
    return tuple(metadata[output_index].shape) if output_index < len(metadata) else ()


def saved_tensor(node: Any, name: str) -> Tensor | None:
    """Return a tensor that a node saved for its backward pass; None if it has no such tensor."""
    try:
        value = getattr(node, name, None)
    except RuntimeError:  # freed by another backward pass, or changed in place
        return None
    return value.detach() if isinstance(value, Tensor) else None


def saved_indices(node: Any) -> tuple[Tensor | None, ...]:
    """Return the index tensors that a lookup node saved; empty if they were freed."""
    try:
        indices = node._saved_indices
        return (indices,) if isinstance(indices, Tensor) else tuple(indices)
    except RuntimeError:  # freed by another backward pass, or changed in place
        return ()
