"""Finds the inputs of a functional network (not an nn.Module) in the autograd graph of its loss.

A leaf is a parameter of the network. A node that multiplies a leaf by a tensor without
``requires_grad`` saves this tensor for its backward pass, and a node that looks up rows of a leaf
saves their ids. These tensors and ids are the inputs of the network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sluice.trace.inspection.autograd_graph import (
    SHAPE_NODES,
    output_shape,
    saved_indices,
    saved_tensor,
    signed_integer,
)

_MAX_HOPS = 8
"""Maximum number of nodes from a product to a leaf, including the leaf. The nodes between product
and leaf must only reshape."""
_MAX_USES = 256
"""Maximum number of uses of a leaf in a pass. Leaves with more uses are skipped."""
_MAX_ELEMENTS = 2**24
"""Maximum total number of elements of the values that are combined with a leaf in several uses. A
leaf with more elements is skipped."""
_MIN_FACTOR_ELEMENTS = 2
"""A tensor that is multiplied elementwise by a leaf counts as an input only if it has at least this
number of elements. A single number is a scale."""
_LEFT_OPERAND_NAMES = ("_saved_mat1", "_saved_self")
"""Attributes in which nodes save a left operand that may be a concatenation of inputs and state."""
_INDEX_DTYPES = (torch.int64, torch.int32)

_OPERANDS = {
    "AddmmBackward0": (("_saved_mat1", 1), ("_saved_mat2", 2)),
    "MmBackward0": (("_saved_self", 0), ("_saved_mat2", 1)),
    "BmmBackward0": (("_saved_self", 0), ("_saved_mat2", 1)),
    "BaddbmmBackward0": (("_saved_batch1", 1), ("_saved_batch2", 2)),
    "MvBackward0": (("_saved_self", 0), ("_saved_vec", 1)),
    "AddmvBackward0": (("_saved_mat", 1), ("_saved_vec", 2)),
    "DotBackward0": (("_saved_self", 0), ("_saved_tensor", 1)),
    "ConvolutionBackward0": (("_saved_input", 0), ("_saved_weight", 1)),
    "MulBackward0": (("_saved_self", 0), ("_saved_other", 1)),
}
"""Left and right operand of each kind of product node: the attribute that contains the operand, and
the position of the operand among the inputs of the node."""
LOOKUP_NODES = ("IndexBackward0", "IndexSelectBackward0", "EmbeddingBackward0")
_SHAPE_ONLY_NODES = SHAPE_NODES - {*LOOKUP_NODES}
_LOG_PROBABILITY_NODES = ("LogSoftmaxBackward0",)
_LOSS_BY_NODE = {
    "MseLossBackward0": "mse_loss",
    "SmoothL1LossBackward0": "smooth_l1_loss",
    "HuberLossBackward0": "huber_loss",
    "BinaryCrossEntropyBackward0": "binary_cross_entropy",
    "BinaryCrossEntropyWithLogitsBackward0": "binary_cross_entropy_with_logits",
    "NllLossBackward0": "cross_entropy",
}


@dataclass(frozen=True, slots=True)
class LeafInput:
    """Values that were combined with a leaf, once or several times in a pass."""

    leaf: Tensor
    num_uses: int
    """Number of products or lookups in which the leaf was combined with values."""
    values: Tensor
    """Values with rows first; (rows, uses, ...) for several uses."""
    is_left_operand: bool
    """Whether the values are the left operand, or the indices of a lookup in the leaf."""
    kind: str
    """Name of the autograd node of the last use, such as 'MmBackward0'."""
    columns: slice | None
    """Columns of the operand that contain the values, if the operand is a concatenation of values
    with and without a gradient; None if the values are the whole operand."""


class _LeafUse(NamedTuple):
    """One product of a leaf with another operand, or one lookup in a leaf."""

    leaf: Tensor
    values: Tensor | None
    """The part of the other operand that has no gradient: the whole operand, or some columns if the
    operand is a concatenation. None if no such part was found."""
    columns: slice | None
    """Columns of the other operand that contain the values; None if they are the whole operand."""
    is_left_operand: bool


def graph_leaves(nodes: Sequence[Any]) -> list[Tensor]:
    """Return the leaf tensors, which receive gradients in the backward pass."""
    return [node.variable for node in nodes if hasattr(node, "variable")]


def inputs_of_leaves(nodes: Sequence[Any]) -> list[LeafInput]:
    """Return the inputs of a functional network in the order of their use, 1-D inputs last.

    Inner weights are omitted. An inner weight has at least one product with values that have a
    gradient. All products of a leaf are examined: in a recurrent network, the first product of an
    inner weight is with the initial state, which has no gradient but is not an input.

    Args:
        nodes: Nodes of the graph, from ``graph_nodes``, before the backward pass.
    """
    consumer_by_node = {
        source: node for node in reversed(nodes) for source, _ in node.next_functions
    }
    values_by_leaf_id: dict[int, list[Tensor]] = {}
    last_use_by_leaf_id: dict[int, tuple[str, _LeafUse]] = {}  # kind of node, and use
    inner_weight_ids = set[int]()
    products = [n for n in nodes if n.name() in _OPERANDS or n.name() in LOOKUP_NODES]
    for node in sorted(products, key=lambda node: int(node._sequence_nr())):
        for use in _leaf_uses(node, consumer_by_node.get(node)):
            leaf_id = id(use.leaf)
            last_use_by_leaf_id[leaf_id] = node.name(), use
            if use.values is None:
                inner_weight_ids.add(leaf_id)
            else:
                values_by_leaf_id.setdefault(leaf_id, []).append(use.values)
    inputs: list[LeafInput] = []
    for leaf_id, values in values_by_leaf_id.items():
        kind, use = last_use_by_leaf_id[leaf_id]
        stacked_values = None if leaf_id in inner_weight_ids else _stack_uses(values, use.columns)
        if stacked_values is not None:
            inputs.append(
                LeafInput(
                    use.leaf, len(values), stacked_values, use.is_left_operand, kind, use.columns
                )
            )
    return sorted(
        _select_distinct_inputs(inputs), key=lambda leaf_input: leaf_input.values.dim() == 1
    )


def find_loss_targets(nodes: Sequence[Any]) -> tuple[str, Tensor, Tensor | None] | None:
    """Return the name of the loss function in the graph of a loss, its targets and its input.

    The input is None if a cross-entropy was computed by indexing log-probabilities, or if the input
    was freed. The whole result is None unless the graph contains exactly one call of a loss
    function.
    """
    loss_calls = list[tuple[str, Tensor, Tensor | None]]()
    for node in nodes:
        name = node.name()
        target: Tensor | None = None
        if name in _LOSS_BY_NODE:
            target = saved_tensor(node, "_saved_target")
            kind, loss_input = _LOSS_BY_NODE[name], saved_tensor(node, "_saved_self")
        elif name in ("IndexBackward0", "GatherBackward0") and _indexes_log_probabilities(node):
            kind, loss_input = "cross_entropy", None
            indices = saved_indices(node) if name == "IndexBackward0" else ()
            target = indices[-1] if len(indices) == 2 else saved_tensor(node, "_saved_index")
        if target is not None:
            loss_calls.append((kind, target.detach().squeeze(), loss_input))
    return loss_calls[0] if len(loss_calls) == 1 else None


def _indexes_log_probabilities(node: Any) -> bool:
    source = node.next_functions[0][0]
    return source is not None and source.name() in _LOG_PROBABILITY_NODES


def _leaf_uses(node: Any, consumer: Any) -> list[_LeafUse]:
    """Return the leaves among the operands of a product or lookup, each with the other operand.

    ``consumer`` is the node that uses the result; None if no node uses the result.
    """
    edges = node.next_functions
    if node.name() in LOOKUP_NODES:
        leaf, ids = _find_leaf(edges[0][0]), _lookup_ids(node)
        return [] if leaf is None or ids is None else [_LeafUse(leaf, ids, None, True)]
    left, right = _OPERANDS[node.name()]
    uses: list[_LeafUse] = []
    for leaf_operand, other_operand in ((right, left), (left, right)):
        (_, leaf_position), (other_name, other_position) = leaf_operand, other_operand
        leaf, is_left = _find_leaf(edges[leaf_position][0]), other_operand is left
        source = edges[other_position][0]  # None if the other operand has no gradient
        if leaf is None:
            continue
        if source is not None:
            uses.append(_LeafUse(leaf, *_concatenated_columns(node, source, other_name), is_left))
        elif (values := saved_tensor(node, other_name)) is not None:
            rows = as_rows(values, leaf, kind=node.name(), is_left=is_left)
            if rows is not None:
                uses.append(_LeafUse(leaf, _restore_shape(rows, consumer), None, is_left))
    return uses


def _find_leaf(node: Any) -> Tensor | None:
    """Return the leaf if an operand is a leaf, possibly reshaped; None for other operands."""
    for _ in range(_MAX_HOPS):
        if node is None:
            return None
        if hasattr(node, "variable"):
            leaf: Tensor = node.variable
            return leaf
        if node.name() not in _SHAPE_ONLY_NODES or len(node.next_functions) != 1:
            return None
        node = node.next_functions[0][0]
    return None


def _lookup_ids(node: Any) -> Tensor | None:
    """Return the integer ids of a lookup of inputs; None for another lookup.

    The result is None if the ids are a range, as in a positional embedding. It is also None if the
    lookup uses several index tensors, or an index tensor that is empty, scalar or not of integers.
    """
    ids = saved_tensor(node, "_saved_index")
    if ids is None:
        indices = saved_indices(node)
        ids = indices[0] if len(indices) == 1 else None
    if ids is None or ids.dtype not in _INDEX_DTYPES or not ids.dim() or not ids.numel():
        return None
    is_range = ids.dim() == 1 and torch.equal(ids, torch.arange(len(ids)).to(ids))
    return None if is_range else ids.detach()


def as_rows(values: Tensor, leaf: Tensor, *, kind: str, is_left: bool) -> Tensor | None:
    """Return an operand with rows first; None if it has no rows.

    A matrix product sums over the last dimension of the returned tensor.

    Args:
        values: One operand of a product.
        leaf: The other operand.
        kind: Name of the node, such as 'MmBackward0'.
        is_left: Whether the values are the left operand.
    """
    if values.layout != torch.strided or values.is_complex() or not values.numel():
        return None
    if kind.startswith("Mul"):
        return _row_factors(values, leaf)
    if kind.startswith("Convolution"):
        return values if is_left else None
    if kind in ("BmmBackward0", "BaddbmmBackward0"):
        if values.shape[0] > 1 and values.stride(0):
            return None  # the values differ between the products of the batch
        values = values[0]
    if values.dim() == 1:
        return values[None]
    return values if is_left else values.mT


def _row_factors(values: Tensor, leaf: Tensor) -> Tensor | None:
    """Return values that multiply a leaf row by row; None for other values, such as a mask."""
    if values.numel() < _MIN_FACTOR_ELEMENTS:
        return None
    if leaf.numel() == 1:
        return values[:, None] if values.dim() == 1 else values
    return values if values.dim() > leaf.dim() else None


def _restore_shape(rows: Tensor, consumer: Any) -> Tensor:
    """Return an operand in the shape that it had before it was flattened to a matrix."""
    shape = output_shape(consumer) if consumer is not None and "View" in consumer.name() else ()
    if len(shape) > 2 and rows.dim() == 2 and torch.Size(shape[:-1]).numel() == rows.shape[0]:
        return rows.reshape(*shape[:-1], rows.shape[1])
    return rows


def _concatenated_columns(
    node: Any, concat_node: Any, saved_name: str
) -> tuple[Tensor | None, slice | None]:
    """Return the columns without a gradient of a concatenated operand, and their slice.

    Return (None, None) unless the operand is a matrix on the left, ``concat_node`` concatenates
    columns, and exactly one of the concatenated tensors has no gradient.
    """
    operand = (
        saved_tensor(node, saved_name)
        if concat_node.name() == "CatBackward0" and saved_name in _LEFT_OPERAND_NAMES
        else None
    )
    if (
        operand is None
        or operand.dim() != 2
        or signed_integer(concat_node._saved_dim) not in (1, -1)
    ):
        return None, None
    sources = [source for source, _ in concat_node.next_functions]
    if sources.count(None) != 1:
        return None, None
    position = sources.index(None)
    widths = [0 if s is None else _width(s, output) for s, output in concat_node.next_functions]
    start, stop = sum(widths[:position]), operand.shape[1] - sum(widths[position:])
    if not 0 <= start < stop or 0 in widths[:position] + widths[position + 1 :]:
        return None, None
    return operand[:, start:stop], slice(start, stop)


def _width(node: Any, position: int) -> int:
    """Return the size of the last dimension of a node's output or leaf; 0 if unknown."""
    if hasattr(node, "variable"):
        return int(node.variable.shape[-1])
    shape = output_shape(node, position)
    return shape[-1] if shape else 0


def _stack_uses(use_values: list[Tensor], columns: slice | None) -> Tensor | None:
    """Return the values of all uses of a leaf, (rows, uses, ...) for several uses.

    Return None if shapes or dtypes differ between the uses, or if the values are too large.
    """
    if columns is not None:
        # The operand is a concatenation of inputs and state. In the first use, the initial state
        # has no gradient either, so the whole operand was stored and is wider than in other uses.
        width = columns.stop - columns.start
        use_values = [t if t.shape[-1] == width else t[..., columns] for t in use_values]
    if len(use_values) == 1:
        return use_values[0]
    num_elements = len(use_values) * use_values[0].numel()
    is_small = len(use_values) <= _MAX_USES and num_elements <= _MAX_ELEMENTS
    is_uniform = len({(t.shape, t.dtype) for t in use_values}) == 1
    return torch.stack(use_values, 1) if is_small and is_uniform else None


def _select_distinct_inputs(inputs: list[LeafInput]) -> list[LeafInput]:
    """Return the inputs without repeats, and without inputs whose values are all equal.

    An input of equal values is an initial state of zeros, or belongs to an intercept. If every
    input has equal values, the first one is returned.
    """
    distinct_inputs: dict[tuple[Any, ...], LeafInput] = {}
    for leaf_input in inputs:
        values = leaf_input.values
        is_stacked = leaf_input.num_uses > 1
        if is_stacked and any(
            other.num_uses > 1 and torch.equal(other.values, values)
            for other in distinct_inputs.values()
        ):
            continue
        # Stacked values are copies, so their address does not identify an input.
        address = id(leaf_input) if is_stacked else values.data_ptr()
        distinct_inputs.setdefault((address, values.shape, values.stride()), leaf_input)
    varying_inputs = [
        leaf_input
        for leaf_input in distinct_inputs.values()
        if bool((leaf_input.values != leaf_input.values.flatten()[0]).any())
    ]
    return varying_inputs or [*distinct_inputs.values()][:1]
