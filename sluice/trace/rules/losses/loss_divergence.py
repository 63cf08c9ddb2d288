"""Detects a loss that jumps during training and never recovers."""

import math

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.step_statistics import OptimizerStatistics
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.learning_rates import LearningRates, learning_rates
from sluice.trace.rules._helpers.loss_jumps import LossJumpSettings, find_loss_jump
from sluice.trace.rules._helpers.measurements import measurements_of, step_losses, weight_positions
from sluice.trace.rules._helpers.optimizer_steps import optimizer_name, stepping_optimizers


class LossDivergenceSettings(Settings):
    """Thresholds of the rule ``LOSS_DIVERGENCE``."""

    min_weight_growth: float = Field(
        3.0,
        gt=1,
        description="A finding requires that the norm of all weights grows by at least this factor "
        "from the last measured step before the jump to the next measured step.",
    )
    min_rate_increase: float = Field(
        5.0,
        gt=1,
        description="The finding blames a raised learning rate if the highest learning rate around "
        "the jump is at least this factor times the highest rate at earlier steps.",
    )
    max_steps_from_jump: int = Field(
        32,
        ge=1,
        description="A learning rate counts as around the jump if it was recorded at most this "
        "number of steps before or after the jump. The number is large, because not every change "
        "of the learning rate is recorded.",
    )
    jump: LossJumpSettings = Field(
        LossJumpSettings(), description="Thresholds of a jump of the loss."
    )


def _weight_norm(trace: Trace, statistics: OptimizerStatistics) -> float:
    return math.hypot(*(statistics.weight_norms[i] for i in weight_positions(trace, statistics)))


def _find_rate_increase(
    settings: LossDivergenceSettings, rates: LearningRates | None, jump_step: int
) -> tuple[float, float] | None:
    """Return (highest learning rate before the steps around a jump, highest rate in these steps).

    The steps around the jump are at most ``max_steps_from_jump`` steps from ``jump_step``. None if
    one of the two rates is unknown, or if their ratio is below ``min_rate_increase``.
    """
    if rates is None:
        return None
    rate_changes = list(zip(rates.steps, rates.values, strict=True))
    distance = settings.max_steps_from_jump
    rate_before = max((rate for s, rate in rate_changes if s < jump_step - distance), default=0.0)
    rate_around = max(
        (rate for s, rate in rate_changes if abs(s - jump_step) <= distance), default=0.0
    )
    if 0 < rate_before * settings.min_rate_increase <= rate_around:
        return rate_before, rate_around
    return None


def _judge(rule: Rule[LossDivergenceSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    optimizers = stepping_optimizers(trace)
    jump = find_loss_jump(step_losses(trace), rule.settings.jump) if len(optimizers) == 1 else None
    if jump is None:
        return ()
    measurements = measurements_of(trace, optimizers[0])
    earlier_statistics = [statistics for step, statistics in measurements if step < jump.step]
    later_measurements = [
        (step, statistics) for step, statistics in measurements if step >= jump.step
    ]
    if (
        not earlier_statistics
        or not later_measurements
        or earlier_statistics[-1].parameters != later_measurements[0][1].parameters
    ):
        return ()
    step_after, statistics_after = later_measurements[0]
    norm_before = _weight_norm(trace, earlier_statistics[-1])
    weight_growth = _weight_norm(trace, statistics_after) / norm_before if norm_before else math.nan
    # ``not >=`` includes a growth that is NaN.
    if not weight_growth >= rule.settings.min_weight_growth or math.isinf(weight_growth):
        return ()
    rates = learning_rates(trace, optimizers[0])
    rate_increase = _find_rate_increase(rule.settings, rates, jump.step)
    if rate_increase is None:
        rate = max(statistics_after.rates)
        increase_text, rate_text = "", f", at a learning rate of {rate:.3g}"
        cause = (
            "A single step overshot the minimum by far, because of an exceptionally large gradient "
            "or a briefly higher learning rate."
        )
        fix = (
            "Clip the gradients (clip_grad_norm_), check the rows of that step, or lower the "
            "learning rate. Resume from an earlier checkpoint."
        )
    else:
        rate_before, rate = rate_increase
        increase_text = (
            f" The learning rate rose from {rate_before:.3g} to {rate:.3g} around this step."
        )
        rate_text = ""
        cause = "Each step overshoots the minimum, so the loss increases."
        fix = (
            "Check the schedule or the code that sets the learning rate at that step; resume from "
            "an earlier checkpoint."
        )
    return (
        rule.finding(
            severity="error",
            step=jump.step,
            what=f"{optimizer_name(trace, optimizers[0])}: at step {jump.step} the loss jumps and "
            f"does not recover. Its median is {jump.median_before:.4g} before the jump and "
            f"{jump.median_after:.4g} after it.{increase_text} At step {step_after} the norm of "
            f"the weights is {weight_growth:,.1f} times the norm before the jump{rate_text}.",
            cause=cause,
            fix=fix,
            loss_before=jump.median_before,
            loss_after=jump.median_after,
            weight_growth=weight_growth,
            rate=rate,
        ),
    )


LOSS_DIVERGENCE = Rule(
    name="the loss does not stay high after a jump",
    fault="learning rate too high",
    priority=270,
    requires="A loss that exceeds each of the preceding 64 losses, or all preceding losses if "
    "there are fewer. At least 16 losses precede this loss and at least 16 follow it. At least one "
    "earlier step is measured, and at least one step from this loss on.",
    contradicted_by="A loss that recovers, or weights that keep their size.",
    abstains="There are several optimizers or a gradient scaler, or other parameters are trained "
    "after the jump.",
    settings=LossDivergenceSettings(),
    judge=_judge,
)
