"""Detects schedules that reach their end long before the training does."""

from dataclasses import dataclass

from pydantic import Field

from sluice.base.settings import Settings
from sluice.findings.fault import Severity
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import SchedulerRecord, Trace
from sluice.trace.rules._helpers.learning_rates import (
    LearningRates,
    count_schedule_steps,
    first_schedule_step,
    learning_rates,
)
from sluice.trace.rules._helpers.loaders import count_epochs
from sluice.trace.rules._helpers.optimizer_steps import count_steps, stepping_optimizers, steps_of

_EXEMPT_SCHEDULERS = frozenset(
    {"OneCycleLR", "CyclicLR", "CosineAnnealingWarmRestarts", "ReduceLROnPlateau", "ConstantLR"}
)
"""Schedulers that are designed for one step per batch, or controlled by the loss."""


class ScheduleEndsEarlySettings(Settings):
    """Thresholds of the rule ``SCHEDULE_ENDS_EARLY``."""

    min_steps: int = Field(20, ge=1, description="Optimizer steps required with a scheduler.")
    min_steps_without_scheduler: int = Field(
        60, ge=1, description="Optimizer steps required without a scheduler."
    )
    min_batches: int = Field(3, ge=1, description="Steps of the schedule per epoch.")
    low_rate: float = Field(
        0.01,
        gt=0,
        le=1,
        description="Rate, relative to the largest one, so low that weights change very little.",
    )
    min_low_share: float = Field(
        0.8, gt=0, le=1, description="Share of all steps at a low rate required for an error."
    )
    min_low_share_to_ask: float = Field(
        0.6,
        gt=0,
        le=1,
        description="Share of all steps at a low rate required for a finding that needs "
        "confirmation.",
    )
    max_final_rate: float = Field(
        0.05,
        gt=0,
        le=1,
        description="Final rate of a schedule with an end, relative to the largest rate.",
    )
    min_cycles: int = Field(4, ge=1, description="Times that a cosine must reach its end.")
    max_cycle_steps: int = Field(64, ge=1, description="Steps of such a cosine.")
    max_decay_factor: float = Field(
        0.98,
        gt=0,
        le=1,
        description="Decay factor per batch; 0.98 halves the rate every 34 batches.",
    )
    max_final_share: float = Field(
        0.02, gt=0, le=1, description="Share of the rate that is left at the end."
    )


@dataclass(frozen=True, slots=True)
class _ScheduleUse:
    fact: SchedulerRecord
    steps: int
    """Number of steps of the schedule."""
    epochs: int
    """Number of epochs; 0 when unknown."""
    rates: LearningRates


def _verdict(settings: ScheduleEndsEarlySettings, use: _ScheduleUse) -> tuple[Severity, str] | None:
    """Return the severity and the evidence for a schedule that ends too early; None otherwise."""
    fact, rates, kind = use.fact, use.rates, use.fact.kind
    low = rates.share_below(settings.low_rate)
    by_epochs = use.epochs >= 2 and use.steps >= settings.min_batches * use.epochs
    # A rate that rises to the end of the schedule is a warmup.
    first = rates.steps[0]
    falls = bool(fact.end) and rates.at(first + fact.end) < 0.5 * max(
        rates.at(first + i) for i in range(min(fact.end, 64) + 1)
    )
    lengths = f"its length is {fact.end} steps, and it was stepped {use.steps} times"
    if by_epochs and falls and fact.end <= use.epochs and use.steps >= 2 * fact.end:
        return "error", f"{lengths}, once per batch of {use.epochs} epochs"
    if kind == "CosineAnnealingLR" and falls and use.steps >= settings.min_cycles * fact.end:
        is_short = not use.epochs and fact.end <= settings.max_cycle_steps
        return "error" if is_short else "confirm", lengths
    size = fact.options.get("step_size", 0)
    is_of_epochs = isinstance(size, int) and by_epochs and 0 < size <= use.epochs
    if is_of_epochs and rates.share_below(0.1) >= 0.5:
        return "error", f"it decays every {size} of its steps, in {use.epochs} epochs"
    gamma = fact.options.get("gamma")
    is_steep = (
        kind == "ExponentialLR" and isinstance(gamma, float) and gamma <= settings.max_decay_factor
    )
    if is_steep and by_epochs and rates.values[-1] <= settings.max_final_share * rates.peak:
        return "error", f"it decays by the factor {gamma} per batch of {use.epochs} epochs"
    floor, falling = rates.values[-1] / rates.peak, rates.steps[-1] - rates.steps[0]
    if (
        low < settings.min_low_share_to_ask
        and floor <= settings.max_final_rate
        and falling <= (1 - settings.min_low_share) * use.steps
    ):
        return "error", f"from step {rates.steps[-1]} on the rate is {floor:.0%} of its maximum"
    if low < settings.min_low_share_to_ask:
        return None
    share = f"in {low:.0%} of all steps the rate is at most a hundredth of its maximum"
    return "error" if low >= settings.min_low_share else "confirm", share


def _detect_without_scheduler(
    rule: Rule[ScheduleEndsEarlySettings], trace: Trace
) -> tuple[TraceFinding, ...]:
    """Detect learning rates that decay to almost zero without a scheduler."""
    scheduled = {fact.optimizer for fact in trace.schedulers}
    found = []
    for optimizer in stepping_optimizers(trace):
        rates, of = learning_rates(trace, optimizer), count_steps(steps_of(trace, optimizer))
        if (
            optimizer in scheduled
            or rates is None
            or rates.peak <= 0
            or of < rule.settings.min_steps_without_scheduler
        ):
            continue
        low = rates.share_below(rule.settings.low_rate)
        if low < rule.settings.min_low_share_to_ask:
            continue
        at = rates.steps[rates.values.index(rates.peak)]
        found.append(
            rule.finding(
                severity="error" if low >= rule.settings.min_low_share else "confirm",
                step=next(
                    s
                    for s, v in zip(rates.steps, rates.values, strict=True)
                    if s > at and v < rates.peak
                ),
                what="The learning rate of an optimizer without a scheduler fell from "
                f"{rates.peak:.3g} to {rates.values[-1]:.3g}; in {low:.0%} of its {of} steps it "
                "is at most a hundredth of its maximum.",
                cause="The code that lowers the rate runs once per batch, but its factor is "
                "meant for epochs: weights stop changing long before the end.",
                fix="Lower the rate once per epoch, or by a factor closer to 1.",
                num_steps=of,
                share_low=low,
            )
        )
    return tuple(found)


def _judge(rule: Rule[ScheduleEndsEarlySettings], trace: Trace) -> tuple[TraceFinding, ...]:
    found = [*_detect_without_scheduler(rule, trace)]
    for fact in trace.schedulers:
        steps = count_schedule_steps(trace, fact.index)
        of = count_steps(steps_of(trace, fact.optimizer))
        rates = learning_rates(trace, fact.optimizer)
        with_each_step = of >= rule.settings.min_steps and steps >= 0.8 * (of - 1)
        if (
            fact.kind in _EXEMPT_SCHEDULERS
            or not with_each_step
            or rates is None
            or rates.peak <= 0
        ):
            continue
        verdict = _verdict(rule.settings, _ScheduleUse(fact, steps, count_epochs(trace), rates))
        if verdict is None:
            continue
        severity, shown = verdict
        found.append(
            rule.finding(
                severity=severity,
                step=first_schedule_step(trace, fact.index),
                what=f"{fact.kind} was stepped {steps} times in {of} steps of its optimizer: "
                f"{shown}. The rate went from {rates.peak:.3g} to {rates.values[-1]:.3g}.",
                cause="A schedule whose length is given in epochs is stepped once per batch: the "
                "rate reaches its end within the first epochs.",
                fix="Call scheduler.step() once per epoch, or set the length of the schedule in "
                "batches.",
                num_schedule_steps=steps,
                num_steps=of,
                end=fact.end,
            )
        )
    return tuple(found)


SCHEDULE_ENDS_EARLY = Rule(
    name="a schedule lasts as long as the training",
    fault="schedule ends early",
    priority=390,
    requires="The recorded rates, and a scheduler that is stepped with each of at least 20 "
    "steps, or no scheduler and 60 steps.",
    contradicted_by="Epochs with as many batches as the schedule has steps.",
    abstains="The schedule is designed for batches (OneCycleLR, warm restarts) or controlled by "
    "the loss, or is a warmup.",
    settings=ScheduleEndsEarlySettings(),
    judge=_judge,
)
