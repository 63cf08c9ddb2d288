"""Detects a training loss that does not decrease."""

import math
import statistics

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.measurements import step_losses
from sluice.trace.rules._helpers.optimizer_steps import count_steps, stepping_optimizers, steps_of


class LossNotDecreasingSettings(Settings):
    """Thresholds of the rule ``LOSS_NOT_DECREASING``."""

    min_losses: int = Field(
        40, ge=4, description="A finding requires at least this number of finite losses."
    )
    min_network_target_share: float = Field(
        0.8,
        gt=0,
        le=1,
        description="The rule reports nothing if at least this share of the steps has targets that "
        "a network computes, or a loss that contains gradients of a network.",
    )


def _judge(rule: Rule[LossNotDecreasingSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    losses = [(s, v) for s, v in step_losses(trace) if math.isfinite(v)]
    loss_counts = {len(step.losses) for step in trace.scalars}
    optimizers = stepping_optimizers(trace)
    if len(losses) < rule.settings.min_losses or len(optimizers) != 1 or loss_counts != {1}:
        return ()
    if _has_network_targets(rule.settings, trace, optimizers[0]):
        return ()
    quarter_length = len(losses) // 4
    first_losses = [v for _, v in losses[:quarter_length]]
    last_losses = [v for _, v in losses[-quarter_length:]]
    num_lower_pairs = sum(last < first for first in first_losses for last in last_losses)
    share_lower = num_lower_pairs / quarter_length**2
    # Without a trend, the later loss is lower in about half of the pairs (Mann-Whitney U test).
    if share_lower >= 0.5:
        return ()
    return (
        rule.finding(
            severity="warning",
            step=losses[-quarter_length][0],
            what="The loss does not decrease. Its median is "
            f"{statistics.median(first_losses):.4g} in the first {quarter_length} recorded steps "
            f"and {statistics.median(last_losses):.4g} in the last {quarter_length}. Of all pairs "
            "of a loss of the first steps and a loss of the last steps, the later loss is lower in "
            f"{share_lower:.0%}; for a decreasing loss, in more than 50%.",
            cause="The network does not learn, or what it learns does not reduce the loss.",
            fix="Train on a single batch only. If the loss does not decrease either, the fault is "
            "in the program, not in the data.",
            share_lower=share_lower,
            num_losses=len(losses),
        ),
    )


def _has_network_targets(settings: LossNotDecreasingSettings, trace: Trace, optimizer: int) -> bool:
    """Whether most steps compute targets with a network, or a loss from gradients of a network.

    A forward pass without gradients indicates that a network computes targets, as in Q-learning. A
    call of ``torch.autograd.grad`` indicates that the loss contains gradients, as in energy-based
    models. Such targets and losses change during training, so the loss need not decrease.
    """
    steps = steps_of(trace, optimizer)
    target_steps = tuple(
        step
        for step in steps
        if any(
            event.kind == "grad" or (event.kind == "forward" and "grad" not in event.flags)
            for event in step.sequence.events[: step.end_position]
        )
    )
    min_steps = settings.min_network_target_share * count_steps(steps)
    return count_steps(target_steps) >= min_steps


LOSS_NOT_DECREASING = Rule(
    name="the loss decreases",
    fault="loss not decreasing",
    priority=290,
    requires="At least 40 finite losses; one optimizer, and one backward pass per step.",
    contradicted_by="Lower losses in the last quarter than in the first quarter.",
    abstains="There are several optimizers, or several losses per step; there is a gradient "
    "scaler; a network computes the targets; or the loss contains gradients.",
    settings=LossNotDecreasingSettings(),
    judge=_judge,
)
