"""Gradient accumulation: the gradient of a large batch, computed from micro-batches.

Shape legend: B = rows of a batch, O = outputs.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.data.rows.protocol import ModelInput, slice_input, split_input

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""Function of (output, y) that returns a scalar."""

LossWeight = Callable[[Tensor], float]
"""Function from targets to the number of items that the loss is a mean over: rows, unpadded tokens,
and so on."""

_TRIED_ROWS = 3
_TOLERANCE = 1e-3
"""Relative tolerance: far above float32 rounding, far below the factor by which a sum differs from
a mean."""


def count_rows(y: Tensor) -> float:
    """Return the number of rows, the default weight of a loss."""
    return float(len(y))


def split_batch(
    x: ModelInput, y: Tensor, *, micro_rows: int | None, loss_weight: LossWeight
) -> Iterator[tuple[ModelInput, Tensor, float]]:
    """Yield the micro-batches of a batch, each with its share of the batch loss.

    The loss of a batch is the mean over its rows. It equals the sum of the micro-batch losses, each
    multiplied by the micro-batch's share of the rows, and gradients add up the same way:
    ``(share * micro_batch_loss).backward()`` for every micro-batch accumulates the gradient of the
    batch, up to rounding, also when the last micro-batch is smaller.

    Args:
        x: Inputs of B rows.
        y: Targets (B, ...).
        micro_rows: Rows of a micro-batch; None for the whole batch at once.
        loss_weight: Number of items that the loss is a mean over. Micro-batches of weight 0 are
            skipped, because their mean is undefined.

    Raises:
        ContractError: The weight of the whole batch is 0.
    """
    if micro_rows is None or len(y) <= micro_rows:
        yield x, y, 1.0
        return
    parts = list(zip(split_input(x, micro_rows), y.split(micro_rows), strict=True))
    weights = [loss_weight(y_part) for _, y_part in parts]
    total = math.fsum(weights)
    if not total > 0:
        raise ContractError(
            f"The weight of a batch must be above 0, got {total:g} for {len(y)} rows: its loss is "
            "a mean over nothing.",
            cause="All targets of the batch are padding.",
            fix="Remove such rows from the examples, or raise batch_rows.",
        )
    for (x_part, y_part), weight in zip(parts, weights, strict=True):
        if weight:
            yield x_part, y_part, weight / total


def require_splittable(
    model: nn.Module,
    loss_fn: LossFunction,
    x: ModelInput,
    y: Tensor,
    *,
    loss_weight: LossWeight,
    setting: str,
) -> None:
    """Refuse a model or loss whose batch loss is not the mean over its micro-batches.

    Args:
        model: Maps ``x`` to predictions; it is left in evaluation mode.
        loss_fn: The loss that is minimised.
        x: A few inputs; at least three rows are needed for the check.
        y: Their targets.
        loss_weight: Number of items that the loss is a mean over.
        setting: Name of the setting that splits batches, for the message.

    Raises:
        ContractError: The network has batch normalisation, or the loss of three rows is not the
            mean over their micro-batches.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ContractError(
                f"{setting} cannot be used with this network: '{name}' is a "
                f"{type(module).__name__}.",
                cause="Batch normalisation computes statistics over the rows of one forward pass, "
                "so micro-batches give other gradients and other running statistics than "
                "the whole batch.",
                fix="Use GroupNorm or LayerNorm, or lower batch_rows so that no batch is split.",
            )
    x, y = slice_input(x, 0, _TRIED_ROWS), y[:_TRIED_ROWS]
    model.eval()
    with torch.no_grad():
        whole = float(loss_fn(model(x), y))
        split = math.fsum(
            share * float(loss_fn(model(x_part), y_part))
            for x_part, y_part, share in split_batch(x, y, micro_rows=2, loss_weight=loss_weight)
        )
    if not (math.isfinite(whole) and math.isfinite(split)):
        return  # reported by the first training step
    if not math.isclose(whole, split, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE**2):
        raise ContractError(
            f"With {setting} the loss must be a mean over rows. For {len(y)} rows it is "
            f"{whole:.6g}, but the mean over micro-batches is {split:.6g}.",
            cause="The loss is a sum, compares rows of a batch with each other, or is a mean over "
            "items other than rows.",
            fix=f"Return the mean of losses() from loss(), or unset {setting}.",
        )
