"""Detects schedules whose length is given in batches, but that are stepped once per epoch."""

import itertools

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import SchedulerRecord, Trace
from sluice.trace.rules._helpers.learning_rates import (
    count_scheduler_calls,
    learning_rates,
    step_of_first_scheduler_call,
)
from sluice.trace.rules._helpers.loaders import count_epochs
from sluice.trace.rules._helpers.optimizer_steps import count_steps, steps_of


class SchedulerSteppedPerEpochSettings(Settings):
    """Thresholds of the rule ``SCHEDULER_STEPPED_PER_EPOCH``."""

    min_optimizer_steps: int = Field(
        40, ge=1, description="A finding requires at least this number of optimizer steps."
    )
    min_scheduler_calls: int = Field(
        3,
        ge=1,
        description="A finding requires at least this number of calls of scheduler.step().",
    )
    min_step_ratio: int = Field(
        5,
        ge=1,
        description="A finding requires at least this number of optimizer steps per call of "
        "scheduler.step(). A finding about the length of the schedule also requires a length of at "
        "least this factor times the number of calls.",
    )
    max_relative_difference: float = Field(
        0.1,
        gt=0,
        le=1,
        description="The length of the schedule counts as equal to the number of optimizer steps "
        "if the two differ by at most this share of the number of optimizer steps.",
    )
    max_reached_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="A warmup counts as unfinished if the final learning rate is at most this "
        "share of the base learning rate.",
    )


def _judge(rule: Rule[SchedulerSteppedPerEpochSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    if trace.num_steps_without_sequence:
        return ()
    findings = []
    num_epochs = count_epochs(trace)
    for scheduler in trace.schedulers:
        num_calls = count_scheduler_calls(trace, scheduler.index)
        num_steps = count_steps(steps_of(trace, scheduler.optimizer))
        is_stepped_rarely = (
            num_steps >= rule.settings.min_optimizer_steps
            and num_calls >= rule.settings.min_scheduler_calls
            and num_calls * rule.settings.min_step_ratio <= num_steps
        )
        if not is_stepped_rarely or (num_epochs and num_calls > num_epochs + 1):
            continue
        evidence_text = _describe_length(
            rule.settings, scheduler, num_calls, num_steps
        ) or _describe_warmup(rule.settings, scheduler, trace)
        if not evidence_text:
            continue
        findings.append(
            rule.finding(
                severity="error",
                step=step_of_first_scheduler_call(trace, scheduler.index),
                what=f"{scheduler.kind} was stepped {num_calls} times in {num_steps} "
                f"steps of its optimizer: {evidence_text}.",
                cause="A schedule whose length is given in batches is stepped once per epoch: "
                "the learning rate stays near its initial value.",
                fix="Call scheduler.step() after every optimizer step, or set the length of the "
                "schedule in epochs.",
                num_scheduler_calls=num_calls,
                num_steps=num_steps,
                schedule_length=scheduler.end,
            )
        )
    return tuple(findings)


def _describe_length(
    settings: SchedulerSteppedPerEpochSettings,
    scheduler: SchedulerRecord,
    num_calls: int,
    num_steps: int,
) -> str:
    """Return the evidence that the length of a schedule is given in batches; "" without it."""
    if (
        scheduler.end < settings.min_step_ratio * num_calls
        or abs(scheduler.end - num_steps) > settings.max_relative_difference * num_steps
    ):
        return ""
    return f"its length of {scheduler.end} steps is about the number of optimizer steps"


def _describe_warmup(
    settings: SchedulerSteppedPerEpochSettings, scheduler: SchedulerRecord, trace: Trace
) -> str:
    """Return the evidence that a warmup is unfinished at the end of the training; "" without it."""
    rates = learning_rates(trace, scheduler.optimizer)
    base_lrs = scheduler.options.get("base_lrs")
    # Base learning rates are recorded as text, such as "0.1, 0.2". A long list is not recorded.
    if scheduler.kind != "LambdaLR" or rates is None or not isinstance(base_lrs, str):
        return ""
    base_rate, values = max(map(float, base_lrs.split(", "))), rates.values
    is_rising = len(values) > settings.min_scheduler_calls and all(
        a < b for a, b in itertools.pairwise(values)
    )
    if not is_rising or values[-1] > settings.max_reached_share * base_rate:
        return ""
    return (
        f"the learning rate still rises at the end, and has reached {values[-1]:.3g} of "
        f"{base_rate:.3g}"
    )


SCHEDULER_STEPPED_PER_EPOCH = Rule(
    name="a schedule with a length in batches is stepped once per batch",
    fault="scheduler stepped per epoch",
    priority=400,
    requires="A scheduler that is stepped at most once in five optimizer steps, and whose end is "
    "known or whose warmup is unfinished.",
    contradicted_by="A training run that was intentionally cut short.",
    abstains="The schedule is stepped more than once per epoch; its length is far from the number "
    "of optimizer steps, and it is no unfinished warmup; or the events of some steps are missing.",
    settings=SchedulerSteppedPerEpochSettings(),
    judge=_judge,
)
