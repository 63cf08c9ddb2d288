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
        description="Number of losses at the start of the run. The lowest of them is the loss at "
        "the start.",
    )
    min_rise: float = Field(
        30.0,
        gt=1,
        description="Minimum ratio of a loss to the loss at the start, for the loss to count as "
        "diverged.",
    )
    min_rise_at_end: float = Field(
        5.0,
        gt=1,
        description="Ratio to the loss at the start that nine tenths of the losses in the second "
        "half of the steps after the divergence must reach. With more losses below it, the "
        "training has recovered. Non-finite losses count as above it.",
    )
    min_finite_rise: float = Field(
        3.0,
        gt=1,
        description="Minimum ratio of the largest finite loss to the loss at the start, for a "
        "finding. If the loss is non-finite at once, the learning rate is not the cause.",
    )
    max_steps_after_rise: int = Field(
        8,
        ge=0,
        description="Number of steps after the loss begins to rise in which a large update still "
        "counts as the cause.",
    )
    min_update_ratio: float = Field(
        0.1,
        gt=0,
        description="Minimum ratio of the norm of a weight's update to the norm of the weight, "
        "for a finding.",
    )


def _detect_divergence(
    settings: LrDivergenceSettings, losses: tuple[tuple[int, float], ...]
) -> tuple[int, float, float] | None:
    """Return the step where the loss begins to diverge, the largest loss, and the start loss.

    None if the loss does not diverge.
    """
    first = [v for _, v in losses[: settings.num_start_losses] if math.isfinite(v)]
    if len(losses) < 2 * settings.num_start_losses or not first:
        return None
    start = min(first)
    # ``not <=`` includes losses that are NaN.
    high = [i for i, (_, v) in enumerate(losses) if not v <= settings.min_rise * start]
    if start <= 0 or not high:
        return None
    tail = [v for _, v in losses[high[0] :]]
    end = tail[len(tail) // 2 :]
    low = [v for v in end if math.isfinite(v) and v < settings.min_rise_at_end * start]
    # Even with a network that has diverged, a few batches have a low loss by chance.
    if len(low) > len(end) // 10:
        return None
    # The loss begins to diverge where it is first more than twice the loss at the start.
    rising = [i for i, (_, v) in enumerate(losses[: high[0] + 1]) if not v <= 2 * start]
    before = [v for _, v in losses[: high[0] + 1] if math.isfinite(v)]
    largest_loss = max([v for v in tail if math.isfinite(v)] + before)
    return losses[rising[0]][0], largest_loss, start


def _judge(rule: Rule[LrDivergenceSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    stepping = stepping_optimizers(trace)
    if len(stepping) != 1:
        return ()
    divergence = _detect_divergence(rule.settings, step_losses(trace))
    if divergence is None:
        return ()
    step, largest_loss, start = divergence
    if largest_loss < rule.settings.min_finite_rise * start:
        return ()
    ratios = [
        (measured.update_norms[i] / measured.weight_norms[i], measured_step, max(measured.rates))
        for measured_step, measured in measurements_of(trace, stepping[0])
        if measured_step <= step + rule.settings.max_steps_after_rise
        for i in weight_positions(trace, measured)
        if measured.weight_norms[i] > 0 and math.isfinite(measured.update_norms[i])
    ]
    largest_ratio, measured_step, rate = max(ratios, default=(0.0, 0, 0.0))
    if largest_ratio < rule.settings.min_update_ratio:
        return ()
    return (
        rule.finding(
            severity="error",
            step=step,
            what=f"{optimizer_name(trace, stepping[0])}: the loss rose from {start:.4g} to "
            f"{largest_loss:.4g} and does not recover. Step {measured_step} changed a weight by "
            f"{largest_ratio:.0%} of its norm, at a learning rate of {rate:.3g}.",
            cause="Each step overshoots the minimum, so the loss increases.",
            fix="Divide the learning rate by ten, and warm it up over the first steps.",
            loss_at_start=start,
            largest_loss=largest_loss,
            update_ratio=largest_ratio,
            rate=rate,
        ),
    )


LR_DIVERGENCE = Rule(
    name="the loss does not diverge",
    fault="learning rate too high",
    priority=260,
    requires="Six losses of one optimizer, and a measured step.",
    contradicted_by="A loss that recovers, or updates that are small relative to the weights.",
    abstains="There are several optimizers; there is a gradient scaler; or the loss is not "
    "positive at the start.",
    settings=LrDivergenceSettings(),
    judge=_judge,
)
