"""One pass over the train rows: gradients of whole batches, clipped once, one step each.

Shape legend: S = steps of an epoch.
"""

import contextlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sluice.base.errors import TrainingFailed
from sluice.training.accumulation import LossFunction, Weigh, parts_of
from sluice.training.batches import Batches
from sluice.training.optimizers import set_arguments
from sluice.training.parameter_groups import set_decay, set_rate
from sluice.training.precision import Arithmetic
from sluice.training.ranks import Ranks
from sluice.training.schedule import rate_at
from sluice.training.settings import TrainSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What the epoch's steps did; see ``EpochResult`` for the fields."""

    loss: float
    learning_rate: float
    grad_norm_mean: float
    grad_norm_max: float
    clipped_share: float
    skipped_steps: int


def fit_epoch(
    model: nn.Module,
    loss_fn: LossFunction,
    batches: Batches,
    optimizer: torch.optim.Optimizer,
    arithmetic: Arithmetic,
    settings: TrainSettings,
    *,
    epoch: int,
    weigh: Weigh,
    ranks: Ranks,
) -> Fitted:
    """Fit ``model`` in place to the batches of one epoch.

    Args:
        model: What is fitted, as ``ranks`` wrapped it.
        loss_fn: (output, y) to the scalar that is minimised.
        batches: The train rows.
        optimizer: Of ``make_optimizer``.
        arithmetic: The number format.
        settings: Those in effect in this epoch.
        epoch: Counted from 1.
        weigh: What a loss is the mean over.
        ranks: The processes that fit it together.

    Raises:
        TrainingFailed: A loss or a gradient is not finite; epoch, step and cause are named. Steps
            that fp16 left out are not looked at.
    """
    model.train()
    first_step, total_steps = (epoch - 1) * batches.steps, settings.max_epochs * batches.steps
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    set_decay(optimizer, settings.weight_decay)
    set_arguments(optimizer, settings)
    rate, losses, norms, taken = 0.0, [], [], []
    for index, (x, y) in enumerate(batches.of(epoch)):
        optimizer.zero_grad(set_to_none=True)
        losses.append(_backward(model, loss_fn, arithmetic, x, y, settings, weigh, ranks))
        norms.append(arithmetic.clip(optimizer, parameters, settings.clip_norm))
        rate = rate_at(first_step + index, total_steps, settings)
        set_rate(optimizer, rate)
        taken.append(arithmetic.step(optimizer))
    # Read once an epoch: a read per step makes an accelerator wait at every step.
    loss_S, norm_S = torch.stack(losses).double().cpu(), torch.stack(norms).double().cpu()
    loss_S = ranks.total(loss_S)
    taken_S = torch.tensor(taken)
    bad = (taken_S & ~(loss_S.isfinite() & norm_S.isfinite())).nonzero().flatten()
    if len(bad):
        at = int(bad[0])
        name, values = "training loss", loss_S
        if loss_S[at].isfinite():
            name, values = "gradient norm", norm_S
        raise diverged(name, float(values[at]), epoch, batches.steps, settings, step=at + 1)
    weight_S = torch.tensor(batches.sizes(), dtype=torch.float64)
    # A step that fp16 left out has a loss all the same, but no gradient.
    counted_S = taken_S | loss_S.isfinite()
    loss_S, weight_S, norm_S = loss_S[counted_S], weight_S[counted_S], norm_S[taken_S]
    return Fitted(
        loss=float((loss_S * weight_S).sum() / weight_S.sum()),
        learning_rate=rate,
        grad_norm_mean=float(norm_S.mean()),
        grad_norm_max=float(norm_S.max()) if len(norm_S) else float("nan"),
        clipped_share=float((norm_S > settings.clip_norm).double().mean()),
        skipped_steps=int((~taken_S).sum()),
    )


def _backward(
    model: nn.Module,
    loss_fn: LossFunction,
    arithmetic: Arithmetic,
    x: Tensor,
    y: Tensor,
    settings: TrainSettings,
    weigh: Weigh,
    ranks: Ranks,
) -> Tensor:
    """Leave the gradient of the whole batch; return this rank's part of its loss."""
    of_rank, world = ranks.split.share(y, weigh), ranks.split.world
    if of_rank == 0:
        # Nothing to add, but the other ranks wait for this one; a mean over nothing is no number.
        output = arithmetic.forward(model, x)
        arithmetic.backward(output.sum() * 0)
        return output.new_zeros(())
    y = ranks.split.own(y)
    parts = list(parts_of(x, y, micro_rows=settings.micro_batch_rows, weigh=weigh))
    losses = []
    for number, (x_part, y_part, of_part) in enumerate(parts, start=1):
        with ranks.alone(model) if number < len(parts) else contextlib.nullcontext():
            loss, share = loss_fn(arithmetic.forward(model, x_part), y_part), of_part * of_rank
            if share != 1.0:
                loss = loss * share
            # The mean over ranks is taken afterwards.
            arithmetic.backward(loss if world == 1 else loss * world)
        losses.append(loss.detach())
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


def diverged(
    name: str,
    value: float,
    epoch: int,
    steps_per_epoch: int,
    settings: TrainSettings,
    *,
    step: int | None = None,
) -> TrainingFailed:
    """Return the error that names a number that is not finite, its place and its likely cause."""
    place = f"epoch {epoch}" + (f", step {step} of {steps_per_epoch}" if step else "")
    what = f"The {name} must be finite, got {value} at {place}."
    if epoch == 1 and step == 1:
        return TrainingFailed(
            what,
            cause="No weight had moved yet, so it comes from the rows or the loss, not from "
            "training: NaN or infinity in an input or target, a logarithm or division by zero.",
            fix="Check the batch's inputs and targets, then the loss function, on finite rows.",
        )
    return TrainingFailed(
        what,
        cause=f"Most likely the learning rate (peak {settings.learning_rate:g}) is too high; else "
        "the loss takes a logarithm of 0, divides by 0, or overflows on extreme outputs.",
        fix=f"Lower learning_rate (try {settings.learning_rate / 10:g}) or clip_norm "
        f"(now {settings.clip_norm:g}); then clamp the arguments of log, exp and division in the "
        "loss, and check rare rows for NaN and infinity.",
    )
