"""Finds the padding positions of a network's input, and the positions that a mask excludes."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from sluice.trace.inspection.plain_tensors import is_plain_dense

_MIN_PADDED_ROWS = 2
"""Minimum number of rows that end (or begin) with two or more padding positions. A single row may
end with equal tokens by chance."""


def find_padding(call_args: Any, *, is_transposed: bool = False) -> Tensor | None:
    """Return a mask of the padding positions, (rows, positions); None if no padding is found.

    Token padding is one token that fills the ends, or the beginnings, of rows and occurs nowhere
    else. Vector padding consists of zero vectors at the ends of rows.

    Args:
        call_args: Arguments of a network. The first tensor of tokens (2-D integers) or of vectors
            (3-D floats) is searched.
        is_transposed: Whether the input is (positions, rows), as with ``batch_first=False``.
    """
    for tensor in tensor_arguments(call_args):
        values = tensor.transpose(0, 1) if is_transposed and tensor.dim() > 1 else tensor
        if is_token_batch(values):
            return _token_padding(values)
        if values.dim() == 3 and values.is_floating_point():
            is_in_run = _trailing_run(~values.detach().any(-1))
            return _plausible_padding(is_in_run)
    return None


def find_padding_candidates(call_args: Any) -> tuple[Tensor, ...]:
    """Return a mask of the padding positions, (rows, positions), for each layout of the input.

    The arguments do not show whether rows or positions come first, but the shape of an attention
    mask does. Return () if both layouts of a square input have padding, because the two masks have
    equal shapes.
    """
    masks = (find_padding(call_args), find_padding(call_args, is_transposed=True))
    candidates = tuple(mask for mask in masks if mask is not None)
    return () if len({mask.shape for mask in candidates}) < len(candidates) else candidates


def _token_padding(ids: Tensor) -> Tensor | None:
    """Return a mask of the padding positions of token ids; None if no padding is found."""
    ids = ids.detach()
    for is_right_padded in (True, False):
        rows = ids if is_right_padded else ids.flip(1)
        has_run = rows[:, -1] == rows[:, -2]
        if int(has_run.sum()) < _MIN_PADDED_ROWS:
            continue
        token = rows[:, -1][has_run].mode().values
        is_in_run = _plausible_padding(_trailing_run(rows == token))
        # A token that ends rows is not padding if it also occurs inside rows.
        if is_in_run is None or bool((rows == token)[~is_in_run].any()):
            continue
        if len(rows[~is_in_run].unique()) > 1:
            return is_in_run if is_right_padded else is_in_run.flip(1)
    return None


def _trailing_run(mask: Tensor) -> Tensor:
    """Return a mask of the run of True values at the end of each row."""
    return mask.flip(1).to(torch.int32).cumprod(1).flip(1).bool()


def _plausible_padding(is_in_run: Tensor) -> Tensor | None:
    """Return the mask; None if fewer than 2 runs have 2 positions, or if a row is all padding."""
    num_runs = int((is_in_run.sum(1) >= 2).sum())
    return is_in_run if num_runs >= _MIN_PADDED_ROWS and not bool(is_in_run.all(1).any()) else None


def masked_positions(mask: Tensor) -> Tensor:
    """Return a bool mask of the positions that a key padding mask excludes.

    ``nn.MultiheadAttention`` excludes the True values of a bool mask, and large negative values of
    a float mask. Here, values below -1e4 count.
    """
    mask = mask.detach()
    return mask if mask.dtype == torch.bool else mask < -1e4


def is_token_batch(tensor: Tensor) -> bool:
    """Return whether a tensor may be token ids, (rows, positions), with 4 or more positions."""
    return (
        tensor.dim() == 2
        and tensor.dtype in (torch.int64, torch.int32)
        and tensor.shape[0] > 0
        and tensor.shape[1] >= 4
    )


def tensor_arguments(call_args: Any) -> Iterator[Tensor]:
    """Yield the plain dense tensors among the arguments, also in a list, tuple or dict."""
    args, kwargs = call_args
    for value in (*args, *kwargs.values()):
        items = value.values() if isinstance(value, dict) else value
        yield from filter(
            is_plain_dense, items if isinstance(value, dict | list | tuple) else [value]
        )
