"""Detects optimizer steps before the backward pass of their batch."""

from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.optimizer_steps import (
    OptimizerStep,
    count_steps,
    first_step_of,
    optimizer_name,
    stepping_optimizers,
    steps_of,
)

_MIN_STEPS = 2
"""Early steps required for a finding."""
_MIN_EARLY_SHARE = 0.9
"""Share of all steps; a rare early step may be intentional, such as after a dropped batch."""


def _has_nothing_new(step: OptimizerStep) -> bool:
    """Whether no gradient was computed since the last step."""
    return bool({"none", "stale"} & set(step.end.flags)) and step.last_backward < 0


def _splits_a_pass(step: OptimizerStep) -> bool:
    """Whether the step is between a forward pass and its backward pass."""
    forwards = [
        i
        for i in step.before("forward")
        if {"grad", "training"} <= set(step.sequence.events[i].flags)
    ]
    # A gradient hook steps inside the backward pass, whose event is recorded when the pass ends.
    is_inside = "in backward" in step.end.flags
    return bool(forwards) and step.last_backward < forwards[-1] and not is_inside


def _judge(rule: Rule, trace: Trace) -> tuple[TraceFinding, ...]:
    found = []
    for optimizer in stepping_optimizers(trace):
        steps = tuple(s for s in steps_of(trace, optimizer) if s.end.kind == "step")
        empty = tuple(filter(_has_nothing_new, steps))
        split = tuple(s for s in steps if _splits_a_pass(s) and not s.before("grad"))
        early = empty if count_steps(empty) >= count_steps(split) else split
        if count_steps(early) < max(_MIN_STEPS, _MIN_EARLY_SHARE * (count_steps(steps) - 1)):
            continue
        new = "no new gradient" if early is empty else "the gradients of the previous batch"
        found.append(
            rule.finding(
                severity="error",
                step=first_step_of(early),
                what=f"{optimizer_name(trace, optimizer)}: {count_steps(early)} of "
                f"{count_steps(steps)} steps ran before backward(), with {new}.",
                cause="The step does not use the loss of its own batch.",
                fix="Order each batch as zero_grad(), forward, backward(), step().",
                num_early=count_steps(early),
                num_steps=count_steps(steps),
            )
        )
    return tuple(found)


STEP_BEFORE_BACKWARD = Rule(
    name="backward runs before the optimizer step",
    fault="step before backward",
    priority=20,
    requires="Two steps.",
    contradicted_by="A backward pass, or gradients that the program sets, between two steps.",
    abstains="The optimizer has a closure, or fewer than nine in ten steps are early.",
    judge=_judge,
)
