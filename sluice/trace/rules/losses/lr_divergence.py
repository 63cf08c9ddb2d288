"""Detects a loss that diverges because the learning rate is too high."""

import math

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.measurements import measurements_of, step_losses, weight_positions
from sluice.trace.rules._helpers.optimizer_steps import optimizer_name, stepping_optimizers


class LrDivergenceSettings(Settings):
    """Thresholds of the rule ``LR_DIVERGENCE``."""

    num_start_losses: int = Field(
        3,
        ge=1,
        description="The loss at the start is the lowest finite loss among this number of first "
        "losses.",
    )
    min_rise: float = Field(
        30.0,
        gt=1,
        description="A loss counts as diverged if it is more than this factor times the loss at "
        "the start, or non-finite.",
    )
    min_rise_at_end: float = Field(
        5.0,
        gt=1,
        description="A loss counts as recovered if it is finite and below this factor times the "
        "loss at the start. Of the losses from the first diverged loss on, the second half is "
        "inspected. A finding requires that at most a tenth of these losses have recovered.",
    )
    min_finite_rise: float = Field(
        3.0,
        gt=1,
        description="A finding requires a finite loss of at least this factor times the loss at "
        "the start. A loss that becomes non-finite without such a rise has another cause than the "
        "learning rate.",
    )
    max_steps_after_rise: int = Field(
        8,
        ge=0,
        description="A large update counts as the cause up to this number of steps after the loss "
        "begins to rise.",
    )
    min_update_ratio: float = Field(
        0.1,
        gt=0,
        description="A finding requires that a step changes a weight by at least this factor times "
        "the norm of the weight.",
    )


def _detect_divergence(
    settings: LrDivergenceSettings, losses: tuple[tuple[int, float], ...]
) -> tuple[int, float, float] | None:
    """Return (step at which the loss begins to diverge, largest finite loss, loss at the start).

    None if the loss does not diverge.
    """
    start_losses = [v for _, v in losses[: settings.num_start_losses] if math.isfinite(v)]
    if len(losses) < 2 * settings.num_start_losses or not start_losses:
        return None
    start_loss = min(start_losses)
    # ``not <=`` includes losses that are NaN.
    diverged_index = next(
        (i for i, (_, v) in enumerate(losses) if not v <= settings.min_rise * start_loss), None
    )
    if start_loss <= 0 or diverged_index is None:
        return None
    later_losses = [v for _, v in losses[diverged_index:]]
    last_half = later_losses[len(later_losses) // 2 :]
    max_recovered_loss = settings.min_rise_at_end * start_loss
    num_recovered_losses = sum(math.isfinite(v) and v < max_recovered_loss for v in last_half)
    # A tenth of the losses may be low: even a diverged network has a low loss on a few batches.
    if num_recovered_losses > len(last_half) // 10:
        return None
    # The loss begins to diverge where it is first more than twice the loss at the start.
    max_normal_loss = min(2.0, settings.min_rise) * start_loss
    first_step = next(step for step, v in losses if not v <= max_normal_loss)
    return first_step, max(v for _, v in losses if math.isfinite(v)), start_loss


def _judge(rule: Rule[LrDivergenceSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    optimizers = stepping_optimizers(trace)
    if len(optimizers) != 1:
        return ()
    divergence = _detect_divergence(rule.settings, step_losses(trace))
    if divergence is None:
        return ()
    step, largest_loss, start_loss = divergence
    if largest_loss < rule.settings.min_finite_rise * start_loss:
        return ()
    updates = [
        (
            statistics.update_norms[i] / statistics.weight_norms[i],
            update_step,
            max(statistics.rates),
        )
        for update_step, statistics in measurements_of(trace, optimizers[0])
        if update_step <= step + rule.settings.max_steps_after_rise
        for i in weight_positions(trace, statistics)
        if statistics.weight_norms[i] > 0 and math.isfinite(statistics.update_norms[i])
    ]
    largest_ratio, update_step, rate = max(updates, default=(0.0, 0, 0.0))
    if largest_ratio < rule.settings.min_update_ratio:
        return ()
    return (
        rule.finding(
            severity="error",
            step=step,
            what=f"{optimizer_name(trace, optimizers[0])}: the loss rose from {start_loss:.4g} "
            f"to {largest_loss:.4g} and does not recover. Step {update_step} changed a weight by "
            f"{largest_ratio:.0%} of its norm, at a learning rate of {rate:.3g}.",
            cause="Each step overshoots the minimum, so the loss increases.",
            fix="Divide the learning rate by ten, and warm it up over the first steps.",
            loss_at_start=start_loss,
            largest_loss=largest_loss,
            update_ratio=largest_ratio,
            rate=rate,
        ),
    )


LR_DIVERGENCE = Rule(
    name="the loss does not diverge",
    fault="learning rate too high",
    priority=260,
    requires="At least six losses of one optimizer, and a measured step.",
    contradicted_by="A loss that recovers, or updates that are small relative to the weights.",
    abstains="There are several optimizers; there is a gradient scaler; or the loss is not "
    "positive at the start.",
    settings=LrDivergenceSettings(),
    judge=_judge,
)
