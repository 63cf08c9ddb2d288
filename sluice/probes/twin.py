"""Copies of networks for tests, so that the original is not changed.

Shape legend: B = rows of a batch.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.base.seeding import RandomStream

ROUNDING = 1e-6
"""Largest change that counts as rounding, as a share of the largest output."""


@contextmanager
def evaluation_twin(network: nn.Module, *, seed: int) -> Iterator[nn.Module]:
    """Yield a copy in evaluation mode, with a random stream of its own.

    Raises:
        ContractError: ``network`` is not an nn.Module, or cannot be copied.
    """
    if not isinstance(network, nn.Module):
        raise ContractError(
            f"A probe of a network requires a torch.nn.Module, got {type(network).__name__}.",
            fix="Pass an instance of the network, not its class.",
        )
    with RandomStream(seed).active():
        try:
            twin = copy.deepcopy(network)
        except Exception as error:  # user modules may contain anything
            raise ContractError(
                f"{type(network).__name__} cannot be copied: {type(error).__name__}: {error}.",
                cause="It contains a non-leaf tensor, a generator or an open file.",
                fix="Keep such objects out of the module, or run the probe before its first "
                "forward pass.",
            ) from error
        yield twin.eval()


def output_of(network: nn.Module, *inputs: Tensor) -> Tensor:
    """Return the output of a forward pass without gradients.

    Raises:
        ContractError: The output is not one tensor of floats.
    """
    with torch.no_grad():
        output: Any = network(*inputs)
    if not isinstance(output, Tensor) or not output.is_floating_point():
        got = str(output.dtype) if isinstance(output, Tensor) else type(output).__name__
        raise ContractError(
            f"A probe requires one tensor of floats from {type(network).__name__}, got {got}.",
            fix="Wrap the network so that it returns that tensor.",
        )
    return output.clone()


def require_rows(x: Tensor, *, at_least: int) -> None:
    """Require a minimum number of rows.

    Raises:
        ContractError: ``x`` is not a tensor or has fewer rows.
    """
    if not isinstance(x, Tensor):
        raise ContractError(
            f"A probe requires a batch of inputs as a tensor, got {type(x).__name__}.",
            fix="Pass a tensor whose first dimension is the batch.",
        )
    if x.dim() == 0 or len(x) < at_least or x.numel() == 0:
        raise ContractError(
            f"A probe requires a batch of at least {at_least} rows, got shape {tuple(x.shape)}.",
            fix=f"Pass {at_least} rows or more.",
        )


def effect(one: Tensor, other: Tensor) -> float:
    """Return the largest change as a share of the largest value; NaN when not finite."""
    if one.numel() == 0:
        return 0.0
    size = one.abs().max().clamp_min(torch.finfo(one.dtype).tiny)
    return float((one - other).abs().max() / size)


def other_values(x: Tensor) -> Tensor:
    """Return an input of the same kind with other values (B, ...).

    Tokens are replaced by the next larger token of the batch, rows of floats by the previous row.
    A single row of floats is mirrored about its mean.

    Raises:
        ContractError: All values are equal.
    """
    known = x.unique()
    if len(known) < 2:
        raise ContractError(
            f"A probe replaces inputs by others of the batch, which requires at least two distinct "
            f"values, got {known.tolist()}.",
            fix="Pass rows that differ.",
        )
    if not x.is_floating_point():
        other: Tensor = known[(torch.searchsorted(known, x.contiguous()) + 1) % len(known)]
        return other
    rolled = x.roll(1, dims=0)
    return 2 * x.mean() - x if torch.equal(rolled, x) else rolled
