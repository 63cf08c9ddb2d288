"""Detects learning-rate schedulers that step before their optimizer."""

from sluice.base.pluralize import pluralize
from sluice.trace.finding import NoThresholds, Rule, TraceFinding
from sluice.trace.records.events import StepSequence
from sluice.trace.records.trace import SchedulerRecord, Trace
from sluice.trace.rules._helpers.learning_rates import count_scheduler_calls
from sluice.trace.rules._helpers.optimizer_steps import optimizer_name


def _find_first_step(trace: Trace, optimizer: int) -> tuple[StepSequence, int] | None:
    """Return the sequence of the optimizer's first step, and the position of its event.

    None if a gradient scaler skipped the first step, or if the optimizer never stepped.
    """
    for sequence in trace.sequences:  # sorted by first step
        for position, event in enumerate(sequence.events):
            if event.kind in ("step", "skip") and event.object_id == optimizer:
                return (sequence, position) if event.kind == "step" else None
    return None


def _count_early_steps(trace: Trace, scheduler: SchedulerRecord) -> tuple[int, bool]:
    """Return how often the scheduler stepped before its optimizer's first step.

    Returns:
        The number of scheduler steps, and whether there may be more: a block of events that is
        repeated without an optimizer step is recorded once. If steps with different sequences
        alternate before the optimizer's first step, the number is an upper bound.
    """
    first_step = _find_first_step(trace, scheduler.optimizer)
    if first_step is None:
        return 0, False
    first_sequence, step_position = first_step
    calls_by_sequence = [
        (sequence, position)
        for sequence in trace.sequences
        for position, event in enumerate(sequence.events)
        if event.kind == "schedule"
        and event.object_id == scheduler.index
        and (
            sequence.first_step < first_sequence.first_step
            or (sequence is first_sequence and position < step_position)
        )
    ]
    num_calls_in_first_sequence = sum(s is first_sequence for s, _ in calls_by_sequence)
    num_earlier_calls = count_scheduler_calls(
        trace, scheduler.index, before_step=first_sequence.first_step
    )
    return num_earlier_calls + num_calls_in_first_sequence, any(
        event.repeat_length > i
        for s, position in calls_by_sequence
        for i, event in enumerate(s.events[position:])
    )


def _judge(rule: Rule[NoThresholds], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for scheduler in trace.schedulers:
        num_early_steps, may_be_more = _count_early_steps(trace, scheduler)
        if not num_early_steps:
            continue
        count_text = ("at least " if may_be_more else "") + pluralize(num_early_steps, "time")
        findings.append(
            rule.finding(
                severity="confirm",
                step=1,
                what=f"{scheduler.kind} stepped {count_text} before the first "
                f"step of {optimizer_name(trace, scheduler.optimizer)}.",
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
