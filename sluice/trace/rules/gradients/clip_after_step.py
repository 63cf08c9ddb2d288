"""Detects gradient clipping after the optimizer step."""

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.optimizer_steps import (
    optimizer_name,
    stepping_optimizers,
    steps_of,
)


class ClipAfterStepSettings(Settings):
    """Thresholds of the rule ``CLIP_AFTER_STEP``."""

    min_late_clips: int = Field(
        2,
        ge=1,
        description="A finding requires at least this number of steps after which gradients are "
        "clipped before the next backward pass.",
    )


def _judge(rule: Rule[ClipAfterStepSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    # Sequences with the event "stepped" are skipped: an optimizer has a closure that it does not
    # call exactly once per step, so the order of events does not show whether a clipping is late.
    sequences = [s for s in trace.sequences if not s.find("stepped")]
    for optimizer in stepping_optimizers(trace):
        # Several optimizers may step one after another on the gradients of one backward pass.
        steps_after_another = any(s.last_backward_position < 0 for s in steps_of(trace, optimizer))
        has_useful_clip = False
        num_late_steps = first_late_step = 0
        for sequence in sequences:
            backwards = sequence.find("backward") + sequence.find("grad")
            # Without a backward pass, the step of this optimizer may still follow the clipping.
            if not backwards and not sequence.is_open and steps_after_another:
                continue
            # A sequence begins after a step: a clipping before the first backward pass is late.
            first_backward = min(backwards, default=len(sequence.events))
            clips = [i for i in sequence.find("clip") if sequence.events[i].object_id == optimizer]
            has_useful_clip |= any(i > first_backward for i in clips)
            # A clipping before the first step of the run cannot be late.
            num_clipped_steps = sequence.count - (sequence.first_step == 1 and not sequence.is_open)
            if num_clipped_steps and any(i < first_backward for i in clips):
                num_late_steps += num_clipped_steps
                step_before = sequence.first_step - (not sequence.is_open)
                first_late_step = first_late_step or max(step_before, 1)
        if num_late_steps < rule.settings.min_late_clips or has_useful_clip:
            continue
        findings.append(
            rule.finding(
                severity="error",
                step=first_late_step,
                what=f"{optimizer_name(trace, optimizer)}: {num_late_steps} steps were followed by "
                "a clipping before the next backward(), so they used unclipped gradients.",
                cause="The clipping has no effect: the step has already used the gradients.",
                fix="Clip between backward() and step().",
                num_late=num_late_steps,
            )
        )
    return tuple(findings)


CLIP_AFTER_STEP = Rule(
    name="gradients are clipped before the optimizer step",
    fault="clip after step",
    priority=50,
    requires="At least two calls of clip_grad_norm_ or clip_grad_value_.",
    contradicted_by="A clipping of the same parameters between backward() and step().",
    abstains="Some clippings are between backward() and step(), or an optimizer has a closure "
    "that it does not call exactly once per step.",
    settings=ClipAfterStepSettings(),
    judge=_judge,
)
