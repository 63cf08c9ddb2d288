"""Detects learning-rate schedulers that step before their optimizer."""

from sluice.base.pluralize import pluralize
from sluice.trace.finding import NoThresholds, Rule, TraceFinding
from sluice.trace.records.trace import SchedulerRecord, Trace
from sluice.trace.rules._helpers.optimizer_steps import optimizer_name


def _count_early_steps(trace: Trace, scheduler: SchedulerRecord) -> int:
    """Return how often the scheduler stepped before its optimizer's first step.

    0 if a gradient scaler skipped the first step, or if the optimizer never stepped.
    """
    num_early_steps = 0
    for sequence in trace.sequences:
        num_scheduler_steps = 0
        for event in sequence.events:
            if event.kind == "schedule" and event.object_id == scheduler.index:
                num_scheduler_steps += 1
            if event.kind in ("step", "skip") and event.object_id == scheduler.optimizer:
                return num_early_steps + num_scheduler_steps if event.kind == "step" else 0
        num_early_steps += num_scheduler_steps * sequence.count
    return 0


def _judge(rule: Rule[NoThresholds], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for scheduler in trace.schedulers:
        num_early_steps = _count_early_steps(trace, scheduler)
        if not num_early_steps:
            continue
        findings.append(
            rule.finding(
                severity="confirm",
                step=1,
                what=f"{scheduler.kind} stepped {pluralize(num_early_steps, 'time')} before the "
                f"first step of {optimizer_name(trace, scheduler.optimizer)}.",
                cause="The schedule runs ahead: its first learning rate is never used.",
                fix="Call scheduler.step() after optimizer.step(). When you resume from a "
                "checkpoint, load the scheduler's state instead of repeating its past steps.",
                num_early_steps=num_early_steps,
            )
        )
    return tuple(findings)


SCHEDULER_BEFORE_OPTIMIZER = Rule(
    name="the scheduler steps after its optimizer",
    fault="scheduler before optimizer",
    priority=100,
    requires="A step of a scheduler and a step of its optimizer.",
    contradicted_by="A schedule that is intentionally advanced before training.",
    abstains="A gradient scaler skipped the first step of the optimizer.",
    settings=NoThresholds(),
    judge=_judge,
)
