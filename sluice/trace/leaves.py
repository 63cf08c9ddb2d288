"""What met the weights of a network that is no module: read from the graph behind its loss.

A node that multiplies numbers without a gradient by a leaf, or looks rows of a leaf up, holds them
for its backward pass: they are what the network was given.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sluice.trace.graph import SHAPES, saved, saved_indices

_MOST_HOPS = 8
_MOST_MET = 256
"""Of one pass: a series may be longer, and is left out then."""
_MOST_NUMBERS = 2**24
_SEVERAL = _TABLE = 2
_JOINED = ("_saved_mat1", "_saved_self")
"""What is on the left of a product of tables."""
_WHOLE = (torch.int64, torch.int32)

_SIDES = {
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
"""Of products: the names of what is on the left and on the right, and their places."""
LOOKUPS = ("IndexBackward0", "IndexSelectBackward0", "EmbeddingBackward0")
_AS_IT_IS = SHAPES - {*LOOKUPS}
_CLASSES = ("LogSoftmaxBackward0",)
_LOSSES = {
    "MseLossBackward0": "mse_loss",
    "SmoothL1LossBackward0": "smooth_l1_loss",
    "HuberLossBackward0": "huber_loss",
    "BinaryCrossEntropyBackward0": "binary_cross_entropy",
    "BinaryCrossEntropyWithLogitsBackward0": "binary_cross_entropy_with_logits",
    "NllLossBackward0": "cross_entropy",
}


@dataclass(frozen=True, slots=True)
class Met:
    """Numbers that met a leaf, once or several times in a pass."""

    leaf: Tensor
    times: int
    values: Tensor
    """Rows first; of several times (rows, times, ...)."""
    is_left: bool
    """They stand on the left of the leaf, or are looked up in it."""
    kind: str
    """Of the node, as 'MmBackward0'."""
    part: slice | None
    """Columns that the values are of what meets the leaf, where others are joined; None for all."""


class _Meeting(NamedTuple):
    leaf: Tensor
    values: Tensor | None
    """None where all of them have a gradient."""
    part: slice | None
    """Columns that they are of what met the leaf; None for all."""
    is_left: bool


def leaves_of(nodes: Sequence[Any]) -> list[Tensor]:
    """Return the tensors that a backward pass gives gradients to."""
    return [node.variable for node in nodes if hasattr(node, "variable")]


def met_by_leaves(nodes: Sequence[Any]) -> list[Met]:
    """Return what a network that is no module was given, in the order in which it was used.

    A leaf that meets numbers with a gradient, too, is inside of the network: what stands in their
    place at the first step of a series is a state, not an input.

    Args:
        nodes: Of the graph, by ``nodes_behind``, before the backward pass.
    """
    above = {part: node for node in reversed(nodes) for part, _ in node.next_functions}
    leaves: dict[int, Tensor] = {}
    values: dict[int, list[Tensor]] = {}
    how: dict[int, tuple[bool, str, slice | None]] = {}
    inside = set[int]()
    products = [n for n in nodes if n.name() in _SIDES or n.name() in LOOKUPS]
    for node in sorted(products, key=lambda node: int(node._sequence_nr())):
        for leaf, told, part, is_left in _meetings(node, above.get(node)):
            leaves[id(leaf)], how[id(leaf)] = leaf, (is_left, node.name(), part)
            if told is None:
                inside.add(id(leaf))
            else:
                values.setdefault(id(leaf), []).append(told)
    found = [
        Met(leaves[key], len(told), whole, *how[key])
        for key, told in values.items()
        if key not in inside and (whole := _whole(told, how[key][2])) is not None
    ]
    found = _distinct(found)
    return sorted(found, key=lambda met: met.values.dim() == 1)  # of rows first, then single ids


def targets_in(nodes: Sequence[Any]) -> tuple[str, Tensor, Tensor | None] | None:
    """Return the loss function that stands behind a loss, its targets, and what it was given.

    None unless there is exactly one.
    """
    found = list[tuple[str, Tensor, Tensor | None]]()
    for node in nodes:
        name = node.name()
        target: Tensor | None = None
        if name in _LOSSES:
            target = saved(node, "_saved_target")
            kind, values = _LOSSES[name], saved(node, "_saved_self")
        elif name in ("IndexBackward0", "GatherBackward0") and _is_of_classes(node):
            kind, values = "cross_entropy", None
            indices = saved_indices(node) if name == "IndexBackward0" else ()
            target = indices[-1] if len(indices) == 2 else saved(node, "_saved_index")
        if target is not None:
            found.append((kind, target.detach().squeeze(), values))
    return found[0] if len(found) == 1 else None


def _is_of_classes(node: Any) -> bool:
    made = node.next_functions[0][0]
    return made is not None and made.name() in _CLASSES


def _meetings(node: Any, above: Any) -> list[_Meeting]:
    """Return the leaves on either side of a product, and what each meets."""
    parts = node.next_functions
    if node.name() in LOOKUPS:
        leaf, ids = _leaf(parts[0][0]), _ids(node)
        return [] if leaf is None or ids is None else [_Meeting(leaf, ids, None, True)]
    (left, at_left), (right, at_right) = _SIDES[node.name()]
    found: list[_Meeting] = []
    for place, other, name in ((at_right, at_left, left), (at_left, at_right, right)):
        leaf = _leaf(parts[place][0])
        if leaf is None:
            continue
        if parts[other][0] is not None:
            found.append(_Meeting(leaf, *_joined(node, parts[other][0], name), name == left))
        elif (values := saved(node, name)) is not None:
            told = as_rows(values, leaf, kind=node.name(), is_left=name == left)
            if told is not None:
                found.append(_Meeting(leaf, _unfolded(told, above), None, name == left))
    return found


def _leaf(node: Any) -> Tensor | None:
    """Return the leaf that a part of a product is, but for its shape."""
    for _ in range(_MOST_HOPS):
        if node is None:
            return None
        if hasattr(node, "variable"):
            leaf: Tensor = node.variable
            return leaf
        if node.name() not in _AS_IT_IS or len(node.next_functions) != 1:
            return None
        node = node.next_functions[0][0]
    return None


def _ids(node: Any) -> Tensor | None:
    ids = saved(node, "_saved_index")
    if ids is None:
        indices = saved_indices(node)
        ids = indices[0] if len(indices) == 1 else None
    if ids is None or ids.dtype not in _WHOLE or not ids.dim() or not ids.numel():
        return None
    # Positions, of which a table has one for each place.
    is_range = ids.dim() == 1 and torch.equal(ids, torch.arange(len(ids)).to(ids))
    return None if is_range else ids.detach()


def as_rows(values: Tensor, leaf: Tensor, *, kind: str, is_left: bool) -> Tensor | None:
    """Return what met a leaf with rows first, and what is summed over last; None for no rows.

    Args:
        values: On one side of a product.
        leaf: On the other side.
        kind: Of the node, as 'MmBackward0'.
        is_left: The values stand on the left.
    """
    if values.layout != torch.strided or values.is_complex() or not values.numel():
        return None
    if kind.startswith("Mul"):
        return _each(values, leaf)
    if kind.startswith("Convolution"):
        return values if is_left else None
    if kind in ("BmmBackward0", "BaddbmmBackward0"):
        if values.shape[0] > 1 and values.stride(0):
            return None  # other numbers for each of several leaves in one
        values = values[0]
    if values.dim() == 1:
        return values[None]
    return values if is_left else values.mT


def _each(values: Tensor, leaf: Tensor) -> Tensor | None:
    """Return numbers that a leaf is multiplied with row by row; None for a mask, say."""
    if values.numel() < _SEVERAL:
        return None
    if leaf.numel() == 1:
        return values[:, None] if values.dim() == 1 else values
    return values if values.dim() > leaf.dim() else None


def _unfolded(rows: Tensor, above: Any) -> Tensor:
    """Give back the dimensions of what is multiplied as a table."""
    shape = _shape(above) if above is not None and "View" in above.name() else ()
    if len(shape) > 2 and rows.dim() == 2 and torch.Size(shape[:-1]).numel() == rows.shape[0]:
        return rows.reshape(*shape[:-1], rows.shape[1])
    return rows


def _joined(node: Any, joins: Any, name: str) -> tuple[Tensor | None, slice | None]:
    """Return the columns without a gradient that stand beside others with one, as embeddings."""
    whole = saved(node, name) if joins.name() == "CatBackward0" and name in _JOINED else None
    if whole is None or whole.dim() != _TABLE or joins._saved_dim not in (1, 2**64 - 1):
        return None, None
    parts = [node for node, _ in joins.next_functions]
    if parts.count(None) != 1:
        return None, None
    place = parts.index(None)
    widths = [0 if part is None else _width(part, at) for part, at in joins.next_functions]
    start, stop = sum(widths[:place]), whole.shape[1] - sum(widths[place:])
    if not 0 <= start < stop or 0 in widths[:place] + widths[place + 1 :]:
        return None, None
    return whole[:, start:stop], slice(start, stop)


def _width(node: Any, place: int) -> int:
    if hasattr(node, "variable"):
        return int(node.variable.shape[-1])
    told: Any = getattr(node, "_input_metadata", ())
    return int(told[place].shape[-1]) if place < len(told) else 0


def _shape(node: Any) -> tuple[int, ...]:
    told: Any = getattr(node, "_input_metadata", ())
    return tuple(told[0].shape) if told else ()


def _whole(told: list[Tensor], part: slice | None) -> Tensor | None:
    if part is not None:  # at first a state without a gradient may be joined, too
        told = [t if t.shape[-1] == part.stop - part.start else t[..., part] for t in told]
    if len(told) == 1:
        return told[0]
    is_small = len(told) <= _MOST_MET and len(told) * told[0].numel() <= _MOST_NUMBERS
    is_even = len({(t.shape, t.dtype) for t in told}) == 1
    return torch.stack(told, 1) if is_small and is_even else None


def _distinct(found: list[Met]) -> list[Met]:
    """Leave out what was met before, and what is the same number throughout, beside other things.

    As a state that nothing went into yet, or an intercept.
    """
    kept: dict[tuple[Any, ...], Met] = {}
    for met in found:
        values = met.values
        key = values.data_ptr() if met.times == 1 else id(met), values.shape, values.stride()
        if met.times > 1:
            key = next(
                (k for k, m in kept.items() if m.times > 1 and torch.equal(m.values, values)), key
            )
        kept.setdefault(key, met)
    several = [met for met in kept.values() if bool((met.values != met.values.flatten()[0]).any())]
    return several or [*kept.values()][:1]
