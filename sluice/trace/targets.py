"""What a loss was compared with, read from its graph: is it the input, shifted by one token?"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from sluice.trace.graph import nodes_behind
from sluice.trace.masks import arguments, is_tokens

_MOST_NODES = 64
_MOST_REACHED = 2048

_LEAST_SERIES = 8
"""Positions."""

_LEAST_SHARE = 0.98
"""Of the targets that count, equal to the next token."""

_MOST_SAME = 0.9
"""Of them equal to the token itself: more is a text of one token, or a copy."""


def tells_next_token(loss: Tensor, given: Any) -> tuple[Tensor, int] | None:
    """Return the tokens among a network's arguments of which the loss's targets are the next ones.

    Args:
        loss: Before its backward pass; its graph is read, not run.
        given: Arguments of the network.

    Returns:
        The tokens, and which of their two dimensions is that of the positions; None for none.
    """
    ids = _told_by(loss, given, _is_shifted)
    if ids is not None:
        return ids, 1
    ids = _told_by(loss, given, _is_shifted_down)
    return None if ids is None else (ids, 0)


def tells_own_token(loss: Tensor, given: Any) -> Tensor | None:
    """Return the tokens among a network's arguments that are themselves the loss's targets."""
    return _told_by(loss, given, _is_own)


def _told_by(loss: Tensor, given: Any, fits: Callable[[Tensor, Tensor], bool]) -> Tensor | None:
    targets = _targets(loss)
    for ids in arguments(given):
        if is_tokens(ids) and any(fits(ids.detach(), t) for t in targets):
            return ids
    return None


def _targets(loss: Tensor) -> list[Tensor]:
    """Return the class numbers that the nodes nearest to the loss hold, flat, -1 for ignored."""
    found: list[Tensor] = []
    for node in nodes_behind(loss, most=_MOST_NODES):
        name = type(node).__name__
        if name.startswith(("NllLoss", "GatherBackward")):
            held: Any = getattr(node, "_saved_target", None)
            held = getattr(node, "_saved_index", None) if held is None else held
            if isinstance(held, Tensor) and held.numel() and not held.is_floating_point():
                flat = held.detach().reshape(-1).to(torch.int64)
                ignored = getattr(node, "_saved_ignore_index", -100)
                # It is told as a whole number without sign.
                ignored = ignored - 2**64 if ignored >= 2**63 else ignored
                found.append(torch.where((flat == ignored) | (flat < 0), -1, flat))
    return found


def reached(loss: Tensor, nodes: Sequence[Any]) -> list[int]:
    """Return which outputs of a network a loss was computed from, by the nodes that made them."""
    wanted = {node: i for i, node in enumerate(nodes) if node is not None}
    met = (wanted[node] for node in nodes_behind(loss, most=_MOST_REACHED) if node in wanted)
    return sorted(islice(met, len(wanted)))


def continued(given: Sequence[Any], targets: Any) -> Any:
    """Return the reference to an input whose numbers, one place later, are the targets.

    Args:
        given: Weak references to what the network was given.
        targets: Numbers with a fraction, (rows, positions).
    """
    if type(targets) is not Tensor or not _is_series(targets):
        return None
    for ref in given:
        values = ref()
        if values is None or not _is_series(values) or values.shape != targets.shape:
            continue
        if torch.equal(values[:, 1:], targets[:, :-1]) and not torch.equal(values, targets):
            return ref
    return None


def _is_series(values: Tensor) -> bool:
    if values.dim() == 3 and values.shape[2] == 1:
        values = values[..., 0]
    return values.dim() == 2 and values.shape[1] >= _LEAST_SERIES and values.is_floating_point()


def _is_own(ids: Tensor, targets: Tensor) -> bool:
    if targets.numel() != ids.numel():
        return False
    counted = targets >= 0
    same = (targets == ids.reshape(-1)) & counted
    return 0 < int(counted.sum()) * _LEAST_SHARE <= int(same.sum())


def _is_shifted_down(ids: Tensor, targets: Tensor) -> bool:
    """Tell the same of tokens of shape (positions, rows)."""
    rows = ids.shape[1]
    if targets.numel() % rows:
        return False
    return _is_shifted(ids.T, targets.reshape(-1, rows).T.reshape(-1))


def _is_shifted(ids: Tensor, targets: Tensor) -> bool:
    rows, length = ids.shape
    for width in (length, length - 1):
        if targets.numel() != rows * width:
            continue
        told = targets.reshape(rows, width)[:, : length - 1]
        counted = told >= 0
        total = int(counted.sum())
        following = int(((told == ids[:, 1:]) & counted).sum())
        same = int(((told == ids[:, :-1]) & counted).sum())
        if total and following >= _LEAST_SHARE * total and same <= _MOST_SAME * total:
            return True
    return False
