"""The gradient of a large batch, computed in parts (TRAIN-1).

Shape legend: B = rows of a batch, O = outputs.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from sluice.base.errors import ContractError

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""(output, y) to a scalar."""

Weigh = Callable[[Tensor], float]
"""From targets to what a loss is the mean over: rows, tokens that are not padding, and so on."""

_TRIED_ROWS = 3
_TOLERANCE = 1e-3
"""Relative; far above the rounding of single precision, far below the factor a sum is off by."""


def count_rows(y: Tensor) -> float:
    """Return the number of rows: what a loss is the mean over unless said otherwise."""
    return float(len(y))


def parts_of(
    x: Tensor, y: Tensor, *, micro_rows: int | None, weigh: Weigh
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Yield the parts of a batch, each with its share of the batch's loss.

    The loss of a batch is the mean over its rows; that of a part is the mean over fewer. So the
    batch's loss is the sum of the parts', each times its share of the rows, and gradients add up
    the same way: ``(share * loss_of_part).backward()`` for every part leaves the gradient of the
    batch, to rounding, also when the last part is smaller.

    Args:
        x: Inputs (B, ...).
        y: Targets (B, ...).
        micro_rows: Rows of a part; None for one part.
        weigh: What the loss is the mean over; parts of weight 0 are left out, as their mean is
            that of nothing.

    Raises:
        ContractError: The whole batch weighs nothing.
    """
    if micro_rows is None or len(y) <= micro_rows:
        yield x, y, 1.0
        return
    parts = list(zip(x.split(micro_rows), y.split(micro_rows), strict=True))
    weights = [weigh(y_part) for _, y_part in parts]
    total = math.fsum(weights)
    if not total > 0:
        raise ContractError(
            f"A batch must hold something its loss is the mean over, got a weight of {total:g} "
            f"for {len(y)} rows.",
            cause="All its targets are padding.",
            fix="Leave such rows out of the examples, or raise batch_rows.",
        )
    for (x_part, y_part), weight in zip(parts, weights, strict=True):
        if weight:
            yield x_part, y_part, weight / total


def require_separable(
    model: nn.Module, loss_fn: LossFunction, x: Tensor, y: Tensor, *, weigh: Weigh, setting: str
) -> None:
    """Refuse a model or loss whose value for a batch is not the mean of its parts'.

    Args:
        model: From ``x`` to predictions; it is left in evaluation mode.
        loss_fn: The loss to be minimised.
        x: A few inputs; at least three rows tell something.
        y: Their targets.
        weigh: What the loss is the mean over.
        setting: What splits batches, for the message.

    Raises:
        ContractError: The network has batch normalisation, or the loss of three rows is not the
            mean of the losses of its parts.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ContractError(
                f"{setting} must be left unset for this network: '{name}' is a "
                f"{type(module).__name__}.",
                cause="Batch normalisation takes its statistics from the rows computed at once, so "
                "parts of a batch do not add up to the batch, neither in gradients nor in "
                "running statistics.",
                fix="Use GroupNorm or LayerNorm, or a batch_rows that is computed at once.",
            )
    x, y = x[:_TRIED_ROWS], y[:_TRIED_ROWS]
    model.eval()
    with torch.no_grad():
        whole = float(loss_fn(model(x), y))
        split = math.fsum(
            share * float(loss_fn(model(x_part), y_part))
            for x_part, y_part, share in parts_of(x, y, micro_rows=2, weigh=weigh)
        )
    if not (math.isfinite(whole) and math.isfinite(split)):
        return  # for the first step to name
    if not math.isclose(whole, split, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE**2):
        raise ContractError(
            f"With {setting} the loss must be a mean over rows: of {len(y)} rows it is "
            f"{whole:.6g}, the mean of its parts is {split:.6g}.",
            cause="The loss is a sum, or compares the rows of a batch with each other, or is a "
            "mean over something other than rows.",
            fix="Return the mean of losses() from loss(), or leave the setting unset.",
        )
