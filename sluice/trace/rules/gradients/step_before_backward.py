"""Detects optimizer steps before the backward pass of their batch."""

from pydantic import Field

from sluice.base.settings import Settings
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


class StepBeforeBackwardSettings(Settings):
    """Thresholds of the rule ``STEP_BEFORE_BACKWARD``."""

    min_steps: int = Field(
        2,
        ge=1,
        description="A finding requires at least this number of steps that run before backward().",
    )
    min_early_share: float = Field(
        0.9,
        gt=0,
        le=1,
        description="A finding requires that at least this share of the steps run before "
        "backward(). One step is not counted in the total, so that a single step after backward() "
        "does not prevent the finding. A few steps may run before backward() intentionally, such "
        "as after a dropped batch.",
    )


def _lacks_new_gradient(step: OptimizerStep) -> bool:
    """Whether no gradient was computed since the previous step."""
    return bool({"none", "stale"} & set(step.end_event.flags)) and step.last_backward_position < 0


def _separates_passes(step: OptimizerStep) -> bool:
    """Whether the step is between a forward pass and its backward pass."""
    forwards = [
        i
        for i in step.find_before("forward")
        if {"grad", "training"} <= set(step.sequence.events[i].flags)
    ]
    # If a gradient hook makes the step during the backward pass, the event "backward" follows the
    # step.
    is_in_backward = "in backward" in step.end_event.flags
    return bool(forwards) and step.last_backward_position < forwards[-1] and not is_in_backward


def _judge(rule: Rule[StepBeforeBackwardSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for optimizer in stepping_optimizers(trace):
        steps = tuple(s for s in steps_of(trace, optimizer) if s.end_event.kind == "step")
        steps_without_gradient = tuple(filter(_lacks_new_gradient, steps))
        steps_between_passes = tuple(
            s for s in steps if _separates_passes(s) and not s.find_before("grad")
        )
        early_steps = max(steps_without_gradient, steps_between_passes, key=count_steps)
        if count_steps(early_steps) < max(
            rule.settings.min_steps, rule.settings.min_early_share * (count_steps(steps) - 1)
        ):
            continue
        typical_step = max(early_steps, key=lambda step: step.sequence.count)
        # Gradients are absent or zero if zero_grad() is called between backward() and the step.
        gradients_text = (
            "no new gradient"
            if {"none", "zero", "stale"} & set(typical_step.end_event.flags)
            else "the gradients of the previous batch"
        )
        findings.append(
            rule.finding(
                severity="error",
                step=first_step_of(early_steps),
                what=f"{optimizer_name(trace, optimizer)}: {count_steps(early_steps)} of "
                f"{count_steps(steps)} steps ran before backward(), with {gradients_text}.",
                cause="The step does not use the loss of its own batch.",
                fix="Order each batch as zero_grad(), forward, backward(), step().",
                num_early=count_steps(early_steps),
                num_steps=count_steps(steps),
            )
        )
    return tuple(findings)


STEP_BEFORE_BACKWARD = Rule(
    name="backward runs before the optimizer step",
    fault="step before backward",
    priority=20,
    requires="At least two steps of one optimizer.",
    contradicted_by="A backward pass, or gradients that the program sets, between two steps.",
    abstains="The optimizer has a closure that it does not call exactly once per step, or fewer "
    "than nine in ten steps run before backward().",
    settings=StepBeforeBackwardSettings(),
    judge=_judge,
)
