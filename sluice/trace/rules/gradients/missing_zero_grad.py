"""Detects gradients that are not cleared between most steps."""

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.optimizer_steps import (
    count_steps,
    first_step_of,
    optimizer_name,
    stepping_optimizers,
    steps_of,
)


class MissingZeroGradSettings(Settings):
    """Thresholds of the rule ``MISSING_ZERO_GRAD``."""

    min_steps: int = Field(
        2,
        ge=1,
        description="A finding requires at least this number of steps whose gradients were not "
        "cleared since the previous step. A single such step may be intentional, such as after an "
        "additional step at the end of gradient accumulation.",
    )


def _judge(rule: Rule[MissingZeroGradSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for optimizer in stepping_optimizers(trace):
        steps = steps_of(trace, optimizer)
        # "carried" marks a step whose gradients were not cleared since the previous step.
        carried_steps = tuple(
            s for s in steps if s.end_event.kind == "step" and "carried" in s.end_event.flags
        )
        num_carried_steps, num_steps = count_steps(carried_steps), count_steps(steps)
        # The total leaves out the first step, which has no earlier gradients. Programs that call
        # torch.autograd.grad are left out, because they may set gradients themselves.
        if (
            num_carried_steps < rule.settings.min_steps
            or num_carried_steps < (num_steps - 1) / 2
            or any(s.find_before("grad") for s in steps)
        ):
            continue
        findings.append(
            rule.finding(
                severity="confirm",
                step=first_step_of(carried_steps),
                what=f"{optimizer_name(trace, optimizer)}: {num_carried_steps} of {num_steps} "
                "steps used gradients that were not cleared since the previous step.",
                cause="These steps use the sum of the gradients of all batches since gradients "
                "were last cleared.",
                fix="Call optimizer.zero_grad() once per step, before backward().",
                num_carried=num_carried_steps,
                num_steps=num_steps,
            )
        )
    return tuple(findings)


MISSING_ZERO_GRAD = Rule(
    name="gradients are cleared between two steps",
    fault="missing zero_grad",
    priority=80,
    requires="At least three steps of one optimizer.",
    contradicted_by="An intentional sum over steps, such as a custom momentum.",
    abstains="The program calls torch.autograd.grad; the optimizer has a closure that it does not "
    "call exactly once per step; or gradients are cleared between most steps.",
    settings=MissingZeroGradSettings(),
    judge=_judge,
)
