"""Which positions of a network's input are padding, and what a mask hides."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from sluice.trace.measuring import PLAIN

_LEAST_RUNS = 2
"""Rows that must end with the same token more than once before it is taken for padding."""


def padding_in(given: Any, *, turned: bool = False) -> Tensor | None:
    """Return which positions are padding, of shape (rows, positions); None when none seem to be.

    Args:
        given: Arguments of a network. Of the first tensor of tokens (whole numbers of two
            dimensions) padding is the token that ends rows in runs and is nowhere else; of rows of
            vectors (three dimensions), those that are all zero at the ends of rows.
        turned: Take the input as (positions, rows), as in ``batch_first=False``.
    """
    for tensor in arguments(given):
        values = tensor.transpose(0, 1) if turned and tensor.dim() > 1 else tensor
        if is_tokens(values):
            return _token_padding(values)
        if values.dim() == 3 and values.is_floating_point():
            ends = _run_at_end(~values.detach().any(-1))
            return _if_some(ends)
    return None


def paddings_in(given: Any) -> tuple[Tensor, ...]:
    """Return which positions are padding, (rows, positions), for both layouts of the input.

    The arguments alone do not say whether rows or positions come first; the shape of a mask does.
    Of a square input with padding in both layouts nothing is returned.
    """
    both = (padding_in(given), padding_in(given, turned=True))
    found = tuple(pads for pads in both if pads is not None)
    return () if len({pads.shape for pads in found}) < len(found) else found


def _token_padding(ids: Tensor) -> Tensor | None:
    ids = ids.detach()
    for last in (True, False):  # padded at the right, or at the left
        rows = ids if last else ids.flip(1)
        in_run = rows[:, -1] == rows[:, -2]
        if int(in_run.sum()) < _LEAST_RUNS:
            continue
        token = rows[:, -1][in_run].mode().values
        ends = _if_some(_run_at_end(rows == token))
        # A word that ends rows is also inside of others; padding is not.
        if ends is None or bool((rows == token)[~ends].any()):
            continue
        if len(rows[~ends].unique()) > 1:
            return ends if last else ends.flip(1)
    return None


def _run_at_end(hits: Tensor) -> Tensor:
    """Return which hits have nothing but hits after them in their row."""
    return hits.flip(1).to(torch.int32).cumprod(1).flip(1).bool()


def _if_some(ends: Tensor) -> Tensor | None:
    """Return them if there are some, and no row is nothing but padding."""
    runs = int((ends.sum(1) >= 2).sum())
    return ends if runs >= _LEAST_RUNS and not bool(ends.all(1).any()) else None


def hidden_by(mask: Tensor) -> Tensor:
    """Return which positions a mask of torch's attention hides: true, or minus infinity."""
    mask = mask.detach()
    return mask if mask.dtype == torch.bool else mask < -1e4


def is_tokens(tensor: Tensor) -> bool:
    """Tell whether a tensor may be token numbers of shape (rows, positions)."""
    return (
        tensor.dim() == 2
        and tensor.dtype in (torch.int64, torch.int32)
        and tensor.shape[0] > 0
        and tensor.shape[1] >= 4
    )


def arguments(given: Any) -> Iterator[Tensor]:
    """Yield the plain tensors among arguments, one level deep: not ragged or sparse ones."""
    args, kwargs = given
    for value in (*args, *kwargs.values()):
        if isinstance(value, list | tuple):
            yield from filter(_is_plain, value)
        elif isinstance(value, dict):
            yield from filter(_is_plain, value.values())
        elif _is_plain(value):
            yield value


def _is_plain(value: Any) -> bool:
    return type(value) in PLAIN and value.layout == torch.strided
