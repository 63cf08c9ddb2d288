"""One pass over the train rows: for each batch a gradient, clipping, and an optimizer step.

Shape legend: S = steps of an epoch.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sluice.base.errors import TrainingFailed
from sluice.data.rows.protocol import ModelInput
from sluice.training.accumulation import LossFunction, LossWeight, split_batch
from sluice.training.batches import Batches
from sluice.training.optimizers import set_changing_arguments
from sluice.training.parameter_groups import set_learning_rate, set_weight_decay
from sluice.training.precision import MixedPrecision
from sluice.training.ranks import Ranks
from sluice.training.schedule import learning_rate_at
from sluice.training.settings import TrainSettings
from sluice.training.train_state import EpochProgress

_BLOCK_STEPS = 1024
"""Number of steps whose losses and norms are packed into one block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStatistics:
    """Statistics of an epoch's steps.

    ``EpochResult`` describes the fields; ``loss`` is its ``train_loss``.
    """

    loss: float
    learning_rate: float
    grad_norm_mean: float
    grad_norm_max: float
    clipped_share: float
    skipped_steps: int


class StepRecords:
    """Losses and gradient norms of an epoch's steps.

    They remain on the device until they are read, because each read synchronises the device.

    Args:
        start: Steps of the epoch that an earlier process finished; None for a new epoch.
    """

    def __init__(self, start: EpochProgress | None) -> None:
        self.learning_rate = 0.0
        """Learning rate of the last step."""
        self._blocks: list[tuple[Tensor, Tensor, Tensor]] = []
        if start is not None:
            self.learning_rate = start.learning_rate
            self._blocks.append((start.loss_S, start.norm_S, start.taken_S))
        self._clear()

    def add(self, loss: Tensor, norm: Tensor, *, is_taken: bool) -> None:
        """Add the loss and the gradient norm of a step, and whether it updated the weights."""
        self._losses.append(loss)
        self._norms.append(norm)
        self._taken_flags.append(is_taken)
        if len(self._taken_flags) == _BLOCK_STEPS:
            self._pack()

    def read(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return losses, norms (float64), and whether the step updated the weights; CPU, (S,)."""
        self._pack()
        losses, norms, taken = zip(*self._blocks, strict=True)
        return (
            torch.cat([loss_S.cpu() for loss_S in losses]),
            torch.cat([norm_S.cpu() for norm_S in norms]),
            torch.cat(taken),
        )

    def _pack(self) -> None:
        """Pack the latest losses and norms into one block: a tensor per number takes 400 bytes."""
        if not self._taken_flags:
            return
        loss_S, norm_S = (torch.stack(values).double() for values in (self._losses, self._norms))
        self._blocks.append((loss_S, norm_S, torch.tensor(self._taken_flags)))
        self._clear()

    def _clear(self) -> None:
        self._losses: list[Tensor] = []
        self._norms: list[Tensor] = []
        self._taken_flags: list[bool] = []


def fit_epoch(
    model: nn.Module,
    loss_fn: LossFunction,
    batches: Batches,
    optimizer: torch.optim.Optimizer,
    mixed_precision: MixedPrecision,
    settings: TrainSettings,
    *,
    epoch: int,
    loss_weight: LossWeight,
    ranks: Ranks,
    start: EpochProgress | None = None,
    after_step: Callable[[StepRecords], None] | None = None,
) -> tuple[EpochStatistics, StepRecords]:
    """Fit ``model`` in place to the batches of one epoch.

    Args:
        model: The model, as wrapped by ``ranks``.
        loss_fn: Function of (output, y) to the scalar that is minimised.
        batches: Batches of the train rows.
        optimizer: An optimizer from ``make_optimizer``.
        mixed_precision: Runs the forward pass, the backward pass and the step in the precision of
            the settings.
        settings: Settings in effect in this epoch.
        epoch: Number of the epoch, counted from 1.
        loss_weight: Maps targets to the number of items over which a loss averages.
        ranks: The processes that train the model together.
        start: Finished steps of this epoch. Their batches are not read again.
        after_step: Called after every step but the last step of the epoch.

    Returns:
        The statistics of the epoch, and the records of its steps.

    Raises:
        TrainingFailed: A loss or a gradient is not finite; the message names epoch, step and cause.
            Steps that fp16 skipped because of an overflow do not raise.
        ContractError: The layout of a batch differs from that of the first batch, or a row source
            breaks its contract.
    """
    model.train()
    epoch_start_step = (epoch - 1) * batches.steps_per_epoch
    total_steps = settings.max_epochs * batches.steps_per_epoch
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    set_weight_decay(optimizer, settings.weight_decay)
    set_changing_arguments(optimizer, settings)
    records, num_finished = StepRecords(start), 0 if start is None else start.steps
    # If no batch remains, no iterator is created, because an iterator starts loader processes.
    remaining_batches = (
        batches.iter_epoch(epoch, first_batch=num_finished)
        if num_finished < batches.steps_per_epoch
        else ()
    )
    for index, (x, y) in enumerate(remaining_batches, start=num_finished):
        optimizer.zero_grad(set_to_none=True)
        loss = backward_batch(model, loss_fn, mixed_precision, x, y, settings, loss_weight, ranks)
        norm = mixed_precision.clip(optimizer, parameters, settings.clip_norm)
        learning_rate = learning_rate_at(epoch_start_step + index, total_steps, settings)
        set_learning_rate(optimizer, learning_rate)
        records.learning_rate = learning_rate
        records.add(loss, norm, is_taken=mixed_precision.step(optimizer))
        if after_step is not None and index + 1 < batches.steps_per_epoch:
            after_step(records)
    loss_S, norm_S, taken_S = records.read()
    loss_S = ranks.all_reduce_sum(loss_S)
    require_finite_steps(loss_S, norm_S, taken_S, epoch, batches.steps_per_epoch, settings)
    weight_S = batches.sizes().double()
    # A step that fp16 skipped has no valid gradient. Its loss is valid if it is finite.
    has_loss_S = taken_S | loss_S.isfinite()
    loss_S, weight_S, norm_S = loss_S[has_loss_S], weight_S[has_loss_S], norm_S[taken_S]
    statistics = EpochStatistics(
        loss=float((loss_S * weight_S).sum() / weight_S.sum()),
        learning_rate=records.learning_rate,
        grad_norm_mean=float(norm_S.mean()),
        grad_norm_max=float(norm_S.max()) if len(norm_S) else float("nan"),
        clipped_share=float((norm_S > settings.clip_norm).double().mean()),
        skipped_steps=int((~taken_S).sum()),
    )
    return statistics, records


def require_finite_steps(
    loss_S: Tensor,
    norm_S: Tensor,
    taken_S: Tensor,
    epoch: int,
    steps_per_epoch: int,
    settings: TrainSettings,
) -> None:
    """Raise if a step that updated the weights had a non-finite loss or gradient norm.

    Raises:
        TrainingFailed: The loss or gradient norm of a step that updated the weights is not finite;
            the first such step is named.
    """
    failed_steps = (taken_S & ~(loss_S.isfinite() & norm_S.isfinite())).nonzero().flatten()
    if len(failed_steps):
        failed_index = int(failed_steps[0])
        name, values = "training loss", loss_S
        if loss_S[failed_index].isfinite():
            name, values = "gradient norm", norm_S
        raise non_finite_error(
            name,
            float(values[failed_index]),
            epoch,
            steps_per_epoch,
            settings,
            step=failed_index + 1,
        )


def backward_batch(
    model: nn.Module,
    loss_fn: LossFunction,
    mixed_precision: MixedPrecision,
    x: ModelInput,
    y: Tensor,
    settings: TrainSettings,
    loss_weight: LossWeight,
    ranks: Ranks,
) -> Tensor:
    """Accumulate this rank's share of the batch gradient, and return its share of the loss."""
    rank_share, world_size = ranks.shard.share(y, loss_weight), ranks.shard.world_size
    if rank_share == 0:
        # This rank has no rows, or only padding, but the other ranks wait for its backward pass.
        # The gradients are 0. The loss function is not called, because a mean over no items is NaN.
        output = mixed_precision.forward(model, x)
        mixed_precision.backward(output.sum() * 0)
        return output.new_zeros(())
    y = ranks.shard.local_rows(y)
    micro_batches = list(
        split_batch(x, y, micro_rows=settings.micro_batch_rows, loss_weight=loss_weight)
    )
    losses = []
    for micro_batch_number, (x_part, y_part, part_share) in enumerate(micro_batches, start=1):
        is_last = micro_batch_number == len(micro_batches)
        with contextlib.nullcontext() if is_last else ranks.no_sync(model):
            loss = loss_fn(mixed_precision.forward(model, x_part), y_part)
            share = part_share * rank_share
            if share != 1.0:
                loss = loss * share
            # DistributedDataParallel divides gradients by world_size; the factor cancels that.
            mixed_precision.backward(loss if world_size == 1 else loss * world_size)
        losses.append(loss.detach())
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


def non_finite_error(
    name: str,
    value: float,
    epoch: int,
    steps_per_epoch: int,
    settings: TrainSettings,
    *,
    step: int | None = None,
) -> TrainingFailed:
    """Return the error for a non-finite loss or gradient norm, with its step and likely cause."""
    location = f"epoch {epoch}" + (f", step {step} of {steps_per_epoch}" if step else "")
    what = f"The {name} must be finite, got {value} at {location}."
    if epoch == 1 and step == 1:
        return TrainingFailed(
            what,
            cause="No weight was updated yet, so the error is in the rows, the network or the loss "
            "function: NaN or infinity in an input or target, the logarithm of zero, or a division "
            "by zero.",
            fix="Check the batch's inputs and targets, then the network and the loss function on "
            "finite rows.",
        )
    return TrainingFailed(
        what,
        cause="The most likely cause is a too high learning rate (peak "
        f"{settings.learning_rate:g}). Otherwise the loss takes the logarithm of 0, divides by 0, "
        "or overflows on extreme outputs.",
        fix=f"Lower learning_rate (try {settings.learning_rate / 10:g}) or clip_norm "
        f"(now {settings.clip_norm:g}); then clamp the arguments of log, exp and division in the "
        "loss, and check rare rows for NaN and infinity.",
    )
