"""Detects gradients that are cleared between backward() and the optimizer step."""

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.measurements import changed_parameters, values_by_parameter
from sluice.trace.rules._helpers.optimizer_steps import (
    OptimizerStep,
    count_steps,
    first_step_of,
    optimizer_name,
    stepping_optimizers,
    steps_of,
)


class MisplacedZeroGradSettings(Settings):
    """Thresholds of the rule ``MISPLACED_ZERO_GRAD``."""

    min_steps: int = Field(
        2,
        ge=1,
        description="A finding requires at least this number of steps whose gradients were cleared "
        "before the step. A single step may lack gradients because the program dropped the batch "
        "on purpose.",
    )


def _clears_own_gradients(step: OptimizerStep) -> bool:
    """Whether the gradients of the step's own batch are cleared before the step.

    The event kind "zero" is a call of zero_grad(). The flag "zero" of a step means that all
    gradients are zero.
    """
    lacks_gradients = bool({"none", "zero"} & set(step.end_event.flags))
    last_zero_grad = max(
        (i for i in step.find_before("zero") if i > step.last_backward_position), default=-1
    )
    # If no zero_grad() follows backward(), gradients that are all zero were zeroed manually.
    if last_zero_grad < 0 and "zero" in step.end_event.flags:
        last_zero_grad = step.end_position
    last_forward = max(step.find_before("forward"), default=-1)
    # If a forward pass follows backward(), gradients are cleared for the next batch.
    return (
        lacks_gradients
        and 0 <= step.last_backward_position < last_zero_grad
        and last_forward < step.last_backward_position
    )


def _find_closure_steps(
    trace: Trace, optimizer: int
) -> tuple[tuple[OptimizerStep, ...], tuple[OptimizerStep, ...]]:
    """Return the steps of an optimizer that calls its closure several times or not at all.

    Such steps end with the event "stepped". The first result contains all of them, the second one
    those whose closure clears the gradients of its own backward pass. The trace does not show
    whether the closure clears them before or after the update. Therefore both results are () if a
    sampled weight changed, or if no weight was sampled twice.
    """
    optimizer_record = {o.index: o for m in trace.memberships for o in m.optimizers}.get(optimizer)
    parameters = optimizer_record.parameters if optimizer_record is not None else ()
    values = values_by_parameter(trace)
    compared_parameters = {p for p in parameters if len(values.get(p, ())) > 1}
    if not compared_parameters or compared_parameters & changed_parameters(trace):
        return (), ()
    steps: list[OptimizerStep] = []
    cleared_steps: list[OptimizerStep] = []
    for sequence in trace.sequences:
        for position in sequence.find("stepped"):
            events, stepped_event = sequence.events[:position], sequence.events[position]
            if stepped_event.object_id != optimizer:
                continue
            step = OptimizerStep(sequence, stepped_event, position)
            steps.append(step)
            backward = max((i for i in sequence.find("backward") if i < position), default=-1)
            is_cleared = any(event.kind == "zero" for event in events[backward + 1 :])
            if backward >= 0 and is_cleared:
                cleared_steps.append(step)
    return tuple(steps), tuple(cleared_steps)


def _judge(rule: Rule[MisplacedZeroGradSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for optimizer in stepping_optimizers(trace):
        steps = steps_of(trace, optimizer)
        cleared_steps = tuple(filter(_clears_own_gradients, steps))
        if not steps:
            steps, cleared_steps = _find_closure_steps(trace, optimizer)
        if count_steps(cleared_steps) < rule.settings.min_steps:
            continue
        findings.append(
            rule.finding(
                severity="error",
                step=first_step_of(cleared_steps),
                what=f"{optimizer_name(trace, optimizer)}: in {count_steps(cleared_steps)} of "
                f"{count_steps(steps)} steps gradients were cleared between backward() and the "
                "update. These steps used no gradient.",
                cause="The gradients of the batch are discarded, so its loss does not affect the "
                "weights.",
                fix="Clear gradients before backward() or after step(). This also applies if you "
                "clear them manually.",
                num_cleared_steps=count_steps(cleared_steps),
                num_steps=count_steps(steps),
            )
        )
    return tuple(findings)


MISPLACED_ZERO_GRAD = Rule(
    name="gradients are not cleared between backward and the step",
    fault="misplaced zero_grad",
    priority=10,
    requires="At least two steps, each after a backward pass.",
    contradicted_by="A gradient that is present when the step begins.",
    abstains="The optimizer has a closure that it does not call exactly once per step, and its "
    "weights change or were not sampled twice.",
    settings=MisplacedZeroGradSettings(),
    judge=_judge,
)
