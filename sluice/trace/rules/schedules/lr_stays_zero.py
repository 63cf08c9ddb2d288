"""Detects a learning rate that stays at zero."""

from pydantic import Field

from sluice.base.pluralize import pluralize
from sluice.base.settings import Settings
from sluice.findings.fault import Severity
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.learning_rates import count_scheduler_calls, learning_rates
from sluice.trace.rules._helpers.optimizer_steps import (
    optimizer_name,
    stepping_optimizers,
    steps_of,
)


class LrStaysZeroSettings(Settings):
    """Thresholds of the rule ``LR_STAYS_ZERO``."""

    min_scheduler_calls: int = Field(
        3,
        ge=1,
        description="After fewer than min_conclusive_steps optimizer steps, severity 'error' "
        "requires at least this number of calls of scheduler.step() at a learning rate of 0.",
    )
    min_steps: int = Field(
        10,
        ge=1,
        description="A finding requires at least this number of optimizer steps at a learning rate "
        "of 0.",
    )
    min_conclusive_steps: int = Field(
        20,
        ge=1,
        description="With at least this number of optimizer steps at a learning rate of 0, the "
        "severity is 'error', however often scheduler.step() was called. But if another optimizer "
        "makes a step while the rate is 0, the finding always needs confirmation.",
    )


def _severity(
    settings: LrStaysZeroSettings, num_steps: int, num_scheduler_calls: int, *, is_alone: bool
) -> Severity | None:
    """Return the severity of a number of steps at a learning rate of 0; None for too few steps.

    Severity 'error' requires that no other optimizer makes a step while the rate is 0
    (``is_alone``), so that nothing is learned.
    """
    is_conclusive = num_steps >= settings.min_conclusive_steps or (
        num_scheduler_calls >= settings.min_scheduler_calls and num_steps >= settings.min_steps
    )
    if is_alone and is_conclusive:
        return "error"
    return "confirm" if num_steps >= settings.min_steps else None


def _is_alone(trace: Trace, optimizer: int, first_step: int, end_step: int) -> bool:
    """Whether no other optimizer made a step after ``first_step`` and before ``end_step``."""
    return not any(
        step.sequence.first_step < end_step and step.sequence.last_step > first_step
        for other_optimizer in stepping_optimizers(trace)
        if other_optimizer != optimizer
        for step in steps_of(trace, other_optimizer)
    )


def _judge(rule: Rule[LrStaysZeroSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for optimizer in stepping_optimizers(trace):
        rates = learning_rates(trace, optimizer)
        if rates is None or rates.values[0] != 0:
            continue
        first_step = rates.steps[0]
        first_positive_step = next(
            (s for s, v in zip(rates.steps, rates.values, strict=True) if v != 0), 0
        )
        end_step = first_positive_step or rates.last_step + 1
        num_steps = sum(
            min(s.sequence.count, end_step - s.sequence.first_step)
            for s in steps_of(trace, optimizer)
            if s.sequence.first_step < end_step
        )
        num_scheduler_calls = sum(
            count_scheduler_calls(trace, s.index, before_step=end_step)
            for s in trace.schedulers
            if s.optimizer == optimizer
        )
        severity = _severity(
            rule.settings,
            num_steps,
            num_scheduler_calls,
            is_alone=_is_alone(trace, optimizer, first_step, end_step),
        )
        if severity is None:
            continue
        schedule_text = (
            f", while its schedule was stepped {pluralize(num_scheduler_calls, 'time')}"
            if num_scheduler_calls
            else ""
        )
        end_text = (
            f"it is positive from step {first_positive_step} on"
            if first_positive_step
            else "it stays 0 to the end"
        )
        findings.append(
            rule.finding(
                severity=severity,
                step=first_step,
                what=f"{optimizer_name(trace, optimizer)}: the learning rate is exactly 0 in the "
                f"first {num_steps} steps of this optimizer{schedule_text}; {end_text}.",
                cause="Weights do not change while the learning rate is 0. A warmup with an "
                "integer division is 0 until its last step.",
                fix="Use float division, and a positive rate at the first step: min(1.0, (step + "
                "1) / warmup).",
                num_steps=num_steps,
                num_scheduler_calls=num_scheduler_calls,
            )
        )
    return tuple(findings)


LR_STAYS_ZERO = Rule(
    name="the learning rate becomes positive",
    fault="learning rate stays zero",
    priority=350,
    requires="Recorded learning rates that start at exactly 0 in every group.",
    contradicted_by="An optimizer that is intentionally inactive at the start.",
    abstains="The learning rate is 0 in fewer than ten steps.",
    settings=LrStaysZeroSettings(),
    judge=_judge,
)
