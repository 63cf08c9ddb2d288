"""Finds the padding positions of a network's input, and the positions that a mask excludes."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from sluice.trace.inspection.plain_tensors import TENSOR_TYPES

_MIN_RUNS = 2
"""Minimum number of rows with two or more padding positions at the end (or beginning). A single row
may end with equal tokens by chance."""


def find_padding(call_args: Any, *, is_transposed: bool = False) -> Tensor | None:
    """Return the padding positions, (rows, positions); None if no padding is found.

    Args:
        call_args: Arguments of a network. The first tensor of tokens (2-D integers) or of vectors
            (3-D floats) is examined. Padding is one token that fills the ends, or the beginnings,
            of rows and occurs nowhere else; or zero vectors at the ends of rows.
        is_transposed: Whether the input is (positions, rows), as with ``batch_first=False``.
    """
    for tensor in tensor_arguments(call_args):
        values = tensor.transpose(0, 1) if is_transposed and tensor.dim() > 1 else tensor
        if is_token_batch(values):
            return _token_padding(values)
        if values.dim() == 3 and values.is_floating_point():
            in_run = _trailing_run(~values.detach().any(-1))
            return _plausible_padding(in_run)
    return None


def find_padding_candidates(call_args: Any) -> tuple[Tensor, ...]:
    """Return the padding positions, (rows, positions), for both layouts of the input.

    The arguments alone do not show whether rows or positions come first; the shape of an attention
    mask does. Empty if padding is found in both layouts of a square input, which is ambiguous.
    """
    both = (find_padding(call_args), find_padding(call_args, is_transposed=True))
    paddings = tuple(padding for padding in both if padding is not None)
    return () if len({padding.shape for padding in paddings}) < len(paddings) else paddings


def _token_padding(ids: Tensor) -> Tensor | None:
    """Return the padding positions of token ids, at the ends or the beginnings of rows."""
    ids = ids.detach()
    for is_right_padded in (True, False):
        rows = ids if is_right_padded else ids.flip(1)
        has_run = rows[:, -1] == rows[:, -2]
        if int(has_run.sum()) < _MIN_RUNS:
            continue
        token = rows[:, -1][has_run].mode().values
        in_run = _plausible_padding(_trailing_run(rows == token))
        # A token that ends rows may also occur inside other rows; padding does not.
        if in_run is None or bool((rows == token)[~in_run].any()):
            continue
        if len(rows[~in_run].unique()) > 1:
            return in_run if is_right_padded else in_run.flip(1)
    return None


def _trailing_run(mask: Tensor) -> Tensor:
    """Return a mask of the run of True values at the end of each row."""
    return mask.flip(1).to(torch.int32).cumprod(1).flip(1).bool()


def _plausible_padding(in_run: Tensor) -> Tensor | None:
    """Return the mask of runs; None if few have 2 or more positions, or if a row is all padding."""
    num_runs = int((in_run.sum(1) >= 2).sum())
    return in_run if num_runs >= _MIN_RUNS and not bool(in_run.all(1).any()) else None


def masked_positions(mask: Tensor) -> Tensor:
    """Return the positions that a key padding mask of ``nn.MultiheadAttention`` excludes.

    These are the True values of a bool mask, and the values below -1e4 of a float mask.
    """
    mask = mask.detach()
    return mask if mask.dtype == torch.bool else mask < -1e4


def is_token_batch(tensor: Tensor) -> bool:
    """Return whether a tensor may be token ids of shape (rows, positions), 4 or more positions."""
    return (
        tensor.dim() == 2
        and tensor.dtype in (torch.int64, torch.int32)
        and tensor.shape[0] > 0
        and tensor.shape[1] >= 4
    )


def tensor_arguments(call_args: Any) -> Iterator[Tensor]:
    """Yield the plain dense tensors among arguments, and those in a list, tuple or dict."""
    args, kwargs = call_args
    for value in (*args, *kwargs.values()):
        items = value.values() if isinstance(value, dict) else value
        yield from filter(_is_dense, items if isinstance(value, dict | list | tuple) else [value])


def _is_dense(value: Any) -> bool:
    return type(value) in TENSOR_TYPES and value.layout == torch.strided
