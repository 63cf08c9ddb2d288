"""Detects schedules that reach their end long before the training does."""

from pydantic import Field

from sluice.base.settings import Settings
from sluice.findings.fault import Severity
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import SchedulerRecord, Trace
from sluice.trace.rules._helpers.learning_rates import (
    LearningRates,
    count_scheduler_calls,
    learning_rates,
    step_of_first_scheduler_call,
)
from sluice.trace.rules._helpers.loaders import count_epochs
from sluice.trace.rules._helpers.optimizer_steps import count_steps, stepping_optimizers, steps_of

_EXEMPT_SCHEDULERS = frozenset(
    {"OneCycleLR", "CyclicLR", "CosineAnnealingWarmRestarts", "ReduceLROnPlateau", "ConstantLR"}
)
"""Schedulers that the rule does not inspect. They are designed for one step per batch, are
controlled by a metric (ReduceLROnPlateau), or do not end at a low rate (ConstantLR)."""


class ScheduleEndsEarlySettings(Settings):
    """Thresholds of the rule ``SCHEDULE_ENDS_EARLY``."""

    min_steps: int = Field(
        20,
        ge=1,
        description="A finding about an optimizer with a scheduler requires at least this number "
        "of optimizer steps.",
    )
    min_steps_without_scheduler: int = Field(
        60,
        ge=1,
        description="A finding about an optimizer without a scheduler requires at least this "
        "number of optimizer steps.",
    )
    min_calls_per_step: float = Field(
        0.8,
        gt=0,
        le=1,
        description="A finding requires at least this number of calls of scheduler.step() per "
        "optimizer step. With fewer calls, the scheduler is not stepped once per batch.",
    )
    min_calls_per_epoch: int = Field(
        3,
        ge=1,
        description="A scheduler counts as stepped once per batch from this number of calls of "
        "scheduler.step() per epoch on.",
    )
    max_low_rate_ratio: float = Field(
        0.01,
        gt=0,
        le=1,
        description="A learning rate counts as low if it is at most this share of the largest "
        "rate. At a low rate, weights change very little.",
    )
    min_low_share: float = Field(
        0.8,
        gt=0,
        le=1,
        description="A finding about low rates has severity 'error' only if at least this share of "
        "all steps are at a low rate. A finding about a schedule that becomes constant requires "
        "that at least this share of the steps follow the last change of the rate.",
    )
    min_low_share_to_confirm: float = Field(
        0.6,
        gt=0,
        le=1,
        description="A finding about low rates requires that at least this share of all steps are "
        "at a low rate. If the share is below min_low_share, the finding needs confirmation.",
    )
    max_final_rate_ratio: float = Field(
        0.05,
        gt=0,
        le=1,
        description="A finding about a schedule that becomes constant requires a final learning "
        "rate of at most this share of the largest rate.",
    )
    min_length_ratio: int = Field(
        4,
        ge=1,
        description="A finding about a cosine schedule requires that the number of calls of "
        "scheduler.step() is at least this factor times the length (T_max).",
    )
    max_cosine_steps: int = Field(
        64,
        ge=1,
        description="If the number of epochs is unknown, severity 'error' requires a cosine "
        "schedule of at most this length (T_max) [steps]. A finding about a longer schedule needs "
        "confirmation. If the number of epochs is known, the severity is 'error' only if the "
        "scheduler is stepped once per batch and its length is at most the number of epochs.",
    )
    max_decay_factor: float = Field(
        0.98,
        gt=0,
        le=1,
        description="An exponential schedule counts as steep if its decay factor per batch is at "
        "most this. 0.98 halves the rate every 34 batches.",
    )
    max_final_rate_ratio_exponential: float = Field(
        0.02,
        gt=0,
        le=1,
        description="A finding about a steep exponential schedule requires a final learning rate "
        "of at most this share of the largest rate.",
    )


def _detect_early_end(
    settings: ScheduleEndsEarlySettings,
    scheduler: SchedulerRecord,
    rates: LearningRates,
    num_calls: int,
    num_epochs: int,
) -> tuple[Severity, str] | None:
    """Return (severity, evidence as text) for a schedule that ends too early; None otherwise.

    ``num_calls`` is the number of calls of ``scheduler.step()``; ``num_epochs`` is 0 if unknown.
    """
    kind, schedule_length = scheduler.kind, scheduler.end
    is_per_batch = num_epochs >= 2 and num_calls >= settings.min_calls_per_epoch * num_epochs
    # A schedule is falling if its rate at the end is below half of the largest rate in the first 64
    # steps. Other schedules, such as a warmup, may end early.
    first_step = rates.steps[0]
    is_falling = bool(schedule_length) and rates.rate_at(first_step + schedule_length) < 0.5 * max(
        rates.rate_at(first_step + i) for i in range(min(schedule_length, 64) + 1)
    )
    length_text = f"its length is {schedule_length} steps"
    if (
        is_per_batch
        and is_falling
        and schedule_length <= num_epochs
        and num_calls >= 2 * schedule_length
    ):
        return "error", f"{length_text}, and the training has {num_epochs} epochs"
    if (
        kind == "CosineAnnealingLR"
        and is_falling
        and num_calls >= settings.min_length_ratio * schedule_length
    ):
        is_short = not num_epochs and schedule_length <= settings.max_cosine_steps
        return "error" if is_short else "confirm", length_text
    # The step size of a StepLR was probably meant in epochs if, in at least half of the steps, the
    # rate is at most a tenth of its peak.
    step_size = scheduler.options.get("step_size", 0)
    is_step_size_in_epochs = isinstance(step_size, int) and 0 < step_size <= num_epochs
    if is_per_batch and is_step_size_in_epochs and rates.low_share(0.1) >= 0.5:
        return "error", (
            f"it decays every {step_size} steps, and the training has {num_epochs} epochs"
        )
    gamma = scheduler.options.get("gamma")
    is_steep = (
        kind == "ExponentialLR" and isinstance(gamma, float) and gamma <= settings.max_decay_factor
    )
    if (
        is_steep
        and is_per_batch
        and rates.values[-1] <= settings.max_final_rate_ratio_exponential * rates.peak
    ):
        return (
            "error",
            f"it multiplies the rate by {gamma} in every batch, over {num_epochs} epochs",
        )
    low_share = rates.low_share(settings.max_low_rate_ratio)
    if low_share >= settings.min_low_share_to_confirm:
        return (
            "error" if low_share >= settings.min_low_share else "confirm",
            f"in {low_share:.0%} of all steps {_describe_low_rate(settings)}",
        )
    final_rate_ratio = rates.values[-1] / rates.peak
    num_steps_until_constant = rates.steps[-1] - rates.steps[0]
    if (
        final_rate_ratio <= settings.max_final_rate_ratio
        and num_steps_until_constant <= (1 - settings.min_low_share) * num_calls
    ):
        return (
            "error",
            f"from step {rates.steps[-1]} on the rate is {final_rate_ratio:.0%} of its maximum",
        )
    return None


def _describe_low_rate(settings: ScheduleEndsEarlySettings) -> str:
    return f"the rate is at most {settings.max_low_rate_ratio:.2g} of its maximum"


def _detect_without_scheduler(
    rule: Rule[ScheduleEndsEarlySettings], trace: Trace
) -> tuple[TraceFinding, ...]:
    """Detect learning rates that the program itself reduces to almost zero, without a scheduler."""
    scheduled_optimizers = {scheduler.optimizer for scheduler in trace.schedulers}
    findings = []
    for optimizer in stepping_optimizers(trace):
        rates = learning_rates(trace, optimizer)
        num_steps = count_steps(steps_of(trace, optimizer))
        if (
            optimizer in scheduled_optimizers
            or rates is None
            or rates.peak <= 0
            or num_steps < rule.settings.min_steps_without_scheduler
        ):
            continue
        low_share = rates.low_share(rule.settings.max_low_rate_ratio)
        if low_share < rule.settings.min_low_share_to_confirm:
            continue
        peak_step = rates.steps[rates.values.index(rates.peak)]
        findings.append(
            rule.finding(
                severity="error" if low_share >= rule.settings.min_low_share else "confirm",
                step=next(
                    step
                    for step, rate in zip(rates.steps, rates.values, strict=True)
                    if step > peak_step and rate < rates.peak
                ),
                what="The learning rate of an optimizer without a scheduler fell from "
                f"{rates.peak:.3g} to {rates.values[-1]:.3g}; in {low_share:.0%} of its "
                f"{num_steps} steps {_describe_low_rate(rule.settings)}.",
                cause="The code that lowers the rate runs once per batch, but its factor is "
                "meant for epochs: weights stop changing long before the end.",
                fix="Lower the rate once per epoch, or by a factor closer to 1.",
                num_steps=num_steps,
                low_share=low_share,
            )
        )
    return tuple(findings)


def _judge(rule: Rule[ScheduleEndsEarlySettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = [*_detect_without_scheduler(rule, trace)]
    for scheduler in trace.schedulers:
        if scheduler.kind in _EXEMPT_SCHEDULERS:
            continue
        num_calls = count_scheduler_calls(trace, scheduler.index)
        num_steps = count_steps(steps_of(trace, scheduler.optimizer))
        rates = learning_rates(trace, scheduler.optimizer)
        min_calls = rule.settings.min_calls_per_step * (num_steps - 1)
        if (
            num_steps < rule.settings.min_steps
            or num_calls < min_calls
            or rates is None
            or rates.peak <= 0
        ):
            continue
        early_end = _detect_early_end(
            rule.settings, scheduler, rates, num_calls, count_epochs(trace)
        )
        if early_end is None:
            continue
        severity, evidence_text = early_end
        findings.append(
            rule.finding(
                severity=severity,
                step=step_of_first_scheduler_call(trace, scheduler.index),
                what=f"{scheduler.kind} was stepped {num_calls} times in {num_steps} "
                f"steps of its optimizer: {evidence_text}. The rate went from {rates.peak:.3g} to "
                f"{rates.values[-1]:.3g}.",
                cause="A schedule whose length is given in epochs is stepped once per batch: the "
                "schedule reaches its end within the first epochs.",
                fix="Call scheduler.step() once per epoch, or set the length of the schedule in "
                "batches.",
                num_scheduler_calls=num_calls,
                num_steps=num_steps,
                schedule_length=scheduler.end,
            )
        )
    return tuple(findings)


SCHEDULE_ENDS_EARLY = Rule(
    name="a schedule lasts as long as the training",
    fault="schedule ends early",
    priority=390,
    requires="Recorded learning rates; and at least 20 optimizer steps with a scheduler that is "
    "stepped in at least 80% of them, or at least 60 steps without a scheduler.",
    contradicted_by="A schedule that intentionally ends long before the training.",
    abstains="The scheduler is designed for one step per batch (OneCycleLR, CyclicLR, warm "
    "restarts) or controlled by a metric; it is a ConstantLR; or the schedule is a warmup.",
    settings=ScheduleEndsEarlySettings(),
    judge=_judge,
)
