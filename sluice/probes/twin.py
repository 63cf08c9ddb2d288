"""A copy of a network that may be asked anything: the network itself is never touched.

Shape legend: B = rows of a batch.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.base.seeding import Stream

ROUNDING = 1e-6
"""Largest change, as a share of the largest output, that is taken for rounding."""


@contextmanager
def evaluation_twin(network: nn.Module, *, seed: int) -> Iterator[nn.Module]:
    """Give a copy in evaluation mode; what it draws is drawn from a stream of its own.

    Raises:
        ContractError: It is no network, or cannot be copied.
    """
    if not isinstance(network, nn.Module):
        raise ContractError(
            f"A probe of a network needs a torch.nn.Module, got {type(network).__name__}.",
            fix="Hand over the network itself, made and not only its class.",
        )
    with Stream(seed).active():
        try:
            twin = copy.deepcopy(network)
        except Exception as error:  # whatever the user's modules hold
            raise ContractError(
                f"{type(network).__name__} cannot be copied: {type(error).__name__}: {error}.",
                cause="It holds a tensor with a history, a generator or an open file.",
                fix="Keep such things out of the module, or probe it before its first pass.",
            ) from error
        yield twin.eval()


def output_of(network: nn.Module, *inputs: Tensor) -> Tensor:
    """Return the output of a pass without gradients.

    Raises:
        ContractError: It is not one tensor of numbers with a fraction.
    """
    with torch.no_grad():
        output: Any = network(*inputs)
    if not isinstance(output, Tensor) or not output.is_floating_point():
        got = str(output.dtype) if isinstance(output, Tensor) else type(output).__name__
        raise ContractError(
            f"A probe needs one tensor of floats from {type(network).__name__}, got {got}.",
            fix="Wrap the network so that it returns the tensor in question.",
        )
    return output.clone()


def require_rows(x: Tensor, *, at_least: int) -> None:
    """Refuse an input without rows and positions enough.

    Raises:
        ContractError: There are fewer.
    """
    if not isinstance(x, Tensor):
        raise ContractError(
            f"A probe needs a batch of inputs as a tensor, got {type(x).__name__}.",
            fix="Hand over a tensor whose first dimension counts rows.",
        )
    if x.dim() == 0 or len(x) < at_least or x.numel() == 0:
        raise ContractError(
            f"A probe needs a batch of at least {at_least} rows, got shape {tuple(x.shape)}.",
            fix=f"Hand over {at_least} rows or more.",
        )


def effect(one: Tensor, other: Tensor) -> float:
    """Return the largest change as a share of the largest number; NaN when not finite."""
    if one.numel() == 0:
        return 0.0
    size = one.abs().max().clamp_min(torch.finfo(one.dtype).tiny)
    return float((one - other).abs().max() / size)


def other_values(x: Tensor) -> Tensor:
    """Return an input with other numbers or tokens, of the kind that the batch has (B, ...).

    Tokens become the next larger token of the batch, and rows of numbers those of the row before.
    Of a single row the numbers are mirrored about their mean.

    Raises:
        ContractError: All tokens, or all numbers, are the same.
    """
    known = x.unique()
    if len(known) < 2:
        raise ContractError(
            f"A probe replaces inputs by others of the batch, got {known.tolist()} only.",
            fix="Hand over rows that differ.",
        )
    if not x.is_floating_point():
        other: Tensor = known[(torch.searchsorted(known, x.contiguous()) + 1) % len(known)]
        return other
    rolled = x.roll(1, dims=0)
    return 2 * x.mean() - x if torch.equal(rolled, x) else rolled
