"""Detects schedules that reach their end long before the training does."""

from dataclasses import dataclass

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
_MIN_STEPS = 20
_MIN_STEPS_WITHOUT_SCHEDULER = 60
"""Optimizer steps required: with a scheduler, and without one."""
_MIN_BATCHES = 3
"""Steps of the schedule per epoch."""
_LOW_RATE = 0.01
"""Rate, relative to the largest one, so low that weights change very little."""
_MIN_LOW_SHARE, _MIN_LOW_SHARE_TO_ASK = 0.8, 0.6
"""Share of all steps at a low rate: for an error, and for a question."""
_MAX_FINAL_RATE = 0.05
"""Final rate of a schedule with an end, relative to the largest rate."""
_MIN_CYCLES, _MAX_CYCLE_STEPS = 4, 64
"""Times that a cosine reached its end, and its maximum number of steps."""
_MAX_DECAY_FACTOR, _MAX_FINAL_SHARE = 0.98, 0.02
"""Decay factor per batch, which halves the rate every 34 batches, and the share of the rate left
at the end."""


@dataclass(frozen=True, slots=True)
class _ScheduleUse:
    fact: SchedulerRecord
    steps: int
    """Number of steps of the schedule."""
    epochs: int
    """Number of epochs; 0 when unknown."""
    rates: LearningRates


def _verdict(use: _ScheduleUse) -> tuple[Severity, str] | None:
    """Return the severity and the evidence for a schedule that ends too early; None otherwise."""
    fact, rates, kind = use.fact, use.rates, use.fact.kind
    low = rates.share_below(_LOW_RATE)
    by_epochs = use.epochs >= 2 and use.steps >= _MIN_BATCHES * use.epochs
    # A rate that rises to the end of the schedule is a warmup.
    first = rates.steps[0]
    falls = bool(fact.end) and rates.at(first + fact.end) < 0.5 * max(
        rates.at(first + i) for i in range(min(fact.end, 64) + 1)
    )
    lengths = f"its length is {fact.end} steps, and it was stepped {use.steps} times"
    if by_epochs and falls and fact.end <= use.epochs and use.steps >= 2 * fact.end:
        return "error", f"{lengths}, once per batch of {use.epochs} epochs"
    if kind == "CosineAnnealingLR" and falls and use.steps >= _MIN_CYCLES * fact.end:
        is_short = not use.epochs and fact.end <= _MAX_CYCLE_STEPS
        return "error" if is_short else "confirm", lengths
    size = fact.options.get("step_size", 0)
    is_of_epochs = isinstance(size, int) and by_epochs and 0 < size <= use.epochs
    if is_of_epochs and rates.share_below(0.1) >= 0.5:
        return "error", f"it decays every {size} of its steps, in {use.epochs} epochs"
    gamma = fact.options.get("gamma")
    is_steep = kind == "ExponentialLR" and isinstance(gamma, float) and gamma <= _MAX_DECAY_FACTOR
    if is_steep and by_epochs and rates.values[-1] <= _MAX_FINAL_SHARE * rates.peak:
        return "error", f"it decays by the factor {gamma} per batch of {use.epochs} epochs"
    floor, falling = rates.values[-1] / rates.peak, rates.steps[-1] - rates.steps[0]
    if (
        low < _MIN_LOW_SHARE_TO_ASK
        and floor <= _MAX_FINAL_RATE
        and falling <= (1 - _MIN_LOW_SHARE) * use.steps
    ):
        return "error", f"from step {rates.steps[-1]} on the rate is {floor:.0%} of its maximum"
    if low < _MIN_LOW_SHARE_TO_ASK:
        return None
    share = f"in {low:.0%} of all steps the rate is at most a hundredth of its maximum"
    return "error" if low >= _MIN_LOW_SHARE else "confirm", share


def _detect_without_scheduler(rule: Rule, trace: Trace) -> tuple[TraceFinding, ...]:
    """Detect learning rates that decay to almost zero without a scheduler."""
    scheduled = {fact.optimizer for fact in trace.schedulers}
    found = []
    for optimizer in stepping_optimizers(trace):
        rates, of = learning_rates(trace, optimizer), count_steps(steps_of(trace, optimizer))
        if (
            optimizer in scheduled
            or rates is None
            or rates.peak <= 0
            or of < _MIN_STEPS_WITHOUT_SCHEDULER
        ):
            continue
        low = rates.share_below(_LOW_RATE)
        if low < _MIN_LOW_SHARE_TO_ASK:
            continue
        at = rates.steps[rates.values.index(rates.peak)]
        found.append(
            rule.finding(
                severity="error" if low >= _MIN_LOW_SHARE else "confirm",
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


def _judge(rule: Rule, trace: Trace) -> tuple[TraceFinding, ...]:
    found = [*_detect_without_scheduler(rule, trace)]
    for fact in trace.schedulers:
        steps = count_schedule_steps(trace, fact.index)
        of = count_steps(steps_of(trace, fact.optimizer))
        rates = learning_rates(trace, fact.optimizer)
        with_each_step = of >= _MIN_STEPS and steps >= 0.8 * (of - 1)
        if (
            fact.kind in _EXEMPT_SCHEDULERS
            or not with_each_step
            or rates is None
            or rates.peak <= 0
        ):
            continue
        verdict = _verdict(_ScheduleUse(fact, steps, count_epochs(trace), rates))
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
    judge=_judge,
)
