"""Tools to test how the output of a network changes if its input is perturbed.

Shape legend: B = rows of a batch.
"""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.base.seeding import RandomStream

MAX_ROUNDING_EFFECT = 1e-6
"""Maximum change of an output that counts as rounding, as a share of the largest output."""


@contextmanager
def evaluation_copy(network: nn.Module, *, seed: int) -> Iterator[nn.Module]:
    """Yield a copy of the network in evaluation mode, with random numbers from the seed.

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
            network_copy = copy.deepcopy(network)
        except Exception as error:  # a user's module may contain anything
            raise ContractError(
                f"{type(network).__name__} cannot be copied: {type(error).__name__}: {error}.",
                cause="The module contains a non-leaf tensor, a generator or an open file.",
                fix="Keep such objects out of the module, or run the probe before the first "
                "forward pass of the module.",
            ) from error
        yield network_copy.eval()


def output_of(network: nn.Module, *inputs: Tensor) -> Tensor:
    """Return the output of a forward pass without gradients.

    Raises:
        ContractError: The output is not one tensor of floats.
    """
    with torch.no_grad():
        output: Any = network(*inputs)
    if not isinstance(output, Tensor) or not output.is_floating_point():
        received = str(output.dtype) if isinstance(output, Tensor) else type(output).__name__
        raise ContractError(
            f"A probe requires one tensor of floats from {type(network).__name__}, got {received}.",
            fix="Wrap the network so that it returns one tensor of floats.",
        )
    return output.clone()


def require_rows(x: Tensor, *, min_rows: int) -> None:
    """Require a minimum number of rows.

    Raises:
        ContractError: ``x`` is not a tensor or has fewer rows.
    """
    if not isinstance(x, Tensor):
        raise ContractError(
            f"A probe requires a batch of inputs as a tensor, got {type(x).__name__}.",
            fix="Pass a tensor whose first dimension is the batch.",
        )
    if x.dim() == 0 or len(x) < min_rows or x.numel() == 0:
        raise ContractError(
            f"A probe requires a batch of at least {pluralize(min_rows, 'row')}, got shape "
            f"{tuple(x.shape)}.",
            fix=f"Pass a batch with at least {pluralize(min_rows, 'row')}.",
        )


def effect(unperturbed: Tensor, perturbed: Tensor) -> float:
    """Return the largest change as a share of the largest output; NaN if a value is NaN."""
    if unperturbed.numel() == 0:
        return 0.0
    largest = unperturbed.abs().max().clamp_min(torch.finfo(unperturbed.dtype).tiny)
    return float((unperturbed - perturbed).abs().max() / largest)


def format_effect(value: float) -> str:
    """Return by how much outputs changed, as text that follows 'changed'."""
    if not math.isfinite(value):
        return "to non-finite values"
    return f"by up to {value:.3g} of the largest output"


def other_values(x: Tensor) -> Tensor:
    """Return an input (B, ...) of the same type with other, valid values.

    Each token is replaced by the next larger token of the batch (the largest by the smallest), and
    each row of floats by the previous row. If all rows of floats are equal, their values are
    mirrored about the mean.

    Raises:
        ContractError: All values are equal.
    """
    distinct_values = x.unique()
    if len(distinct_values) < 2:
        raise ContractError(
            "A probe replaces values by other values of the batch, which requires at least two "
            f"distinct values, got {distinct_values.tolist()}.",
            fix="Pass rows that differ.",
        )
    if not x.is_floating_point():
        index_of_next_larger = (torch.searchsorted(distinct_values, x.contiguous()) + 1) % len(
            distinct_values
        )
        replaced_x: Tensor = distinct_values[index_of_next_larger]
        return replaced_x
    previous_rows = x.roll(1, dims=0)
    return 2 * x.mean() - x if torch.equal(previous_rows, x) else previous_rows
