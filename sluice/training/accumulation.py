"""Gradient accumulation: the gradient of a large batch, computed from micro-batches.

Shape legend: B = rows of a batch.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.data.rows.protocol import ModelInput, slice_input, split_input

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""Function of (output, y) that returns a scalar, or one loss per row (B,)."""

LossWeight = Callable[[Tensor], float]
"""Function that maps targets to the number of items over which the loss averages, for example rows
or unpadded tokens."""

_CHECK_ROWS = 3
"""Number of rows on which the loss is checked; they form micro-batches of 2 rows and 1 row."""

_LOSS_TOLERANCE = 1e-3
"""Relative tolerance of the comparison of two losses. It is far above float32 rounding, and far
below the difference between a sum and a mean."""


def count_rows(y: Tensor) -> float:
    """Return the number of rows, the default weight of a loss."""
    return float(len(y))


def split_batch(
    x: ModelInput, y: Tensor, *, micro_rows: int | None, loss_weight: LossWeight
) -> Iterator[tuple[ModelInput, Tensor, float]]:
    """Yield the micro-batches of a batch, each with its share of the items of the batch.

    The loss of a batch is a mean over items, such as rows. It equals the sum of the micro-batch
    losses, each multiplied by the micro-batch's share of the items. Gradients add up the same way:
    ``(share * micro_batch_loss).backward()`` for every micro-batch accumulates the gradient of the
    batch, up to rounding. The last micro-batch may be smaller.

    Args:
        x: Inputs of B rows.
        y: Targets (B, ...).
        micro_rows: Rows of a micro-batch; None for the whole batch at once.
        loss_weight: Maps targets to the number of items over which the loss averages. Micro-batches
            of weight 0 are skipped, because their mean is undefined.

    Raises:
        ContractError: The batch is split, and the weight of the whole batch is 0.
    """
    if micro_rows is None or len(y) <= micro_rows:
        yield x, y, 1.0
        return
    micro_batches = list(zip(split_input(x, micro_rows), y.split(micro_rows), strict=True))
    weights = [loss_weight(y_part) for _, y_part in micro_batches]
    total_weight = math.fsum(weights)
    if not total_weight > 0:
        raise ContractError(
            f"The weight of a batch must be above 0, got {total_weight:g} for {len(y)} rows: the "
            "batch has no items over which the loss could average.",
            cause="All targets of the batch are padding.",
            fix="Remove examples whose targets are all padding, or raise batch_rows.",
        )
    for (x_part, y_part), weight in zip(micro_batches, weights, strict=True):
        if weight:
            yield x_part, y_part, weight / total_weight


def require_splittable(
    model: nn.Module,
    loss_fn: LossFunction,
    x: ModelInput,
    y: Tensor,
    *,
    loss_weight: LossWeight,
    setting: str,
) -> None:
    """Raise if the loss of a batch is not the mean over its micro-batches for this model and loss.

    Args:
        model: Maps ``x`` to predictions. This function sets the evaluation mode of the model.
        loss_fn: The loss that is minimised.
        x: Inputs, of which the first three rows are used.
        y: Targets of ``x``.
        loss_weight: Maps targets to the number of items over which the loss averages.
        setting: Name of the setting that splits batches, for the message.

    Raises:
        ContractError: The network has batch normalisation, or the loss of three rows is not the
            mean over their micro-batches, weighted by ``loss_weight``.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ContractError(
                f"{setting} cannot be used with this network: '{name}' is a "
                f"{type(module).__name__}.",
                cause="Batch normalisation computes statistics over the rows of one forward pass, "
                "so micro-batches give other gradients and other running statistics than "
                "the whole batch.",
                fix=f"Use GroupNorm or LayerNorm, or unset {setting}.",
            )
    x, y = slice_input(x, 0, _CHECK_ROWS), y[:_CHECK_ROWS]
    model.eval()
    with torch.no_grad():
        batch_loss = float(loss_fn(model(x), y))
        micro_batch_mean = math.fsum(
            share * float(loss_fn(model(x_part), y_part))
            for x_part, y_part, share in split_batch(x, y, micro_rows=2, loss_weight=loss_weight)
        )
    if not (math.isfinite(batch_loss) and math.isfinite(micro_batch_mean)):
        return  # the first training step reports a non-finite loss
    if not math.isclose(
        batch_loss, micro_batch_mean, rel_tol=_LOSS_TOLERANCE, abs_tol=_LOSS_TOLERANCE**2
    ):
        raise ContractError(
            f"With {setting} the loss must be a mean over rows, or over the items that "
            f"loss_weight() counts. For {len(y)} rows the loss is {batch_loss:.6g}, but the mean "
            f"over micro-batches is {micro_batch_mean:.6g}.",
            cause="The loss is a sum, compares rows of a batch with each other, or is a mean over "
            "other items than loss_weight() counts.",
            fix="Return the mean of losses() from loss(), or let loss_weight() return the number "
            f"of items over which loss() averages, or unset {setting}.",
        )
