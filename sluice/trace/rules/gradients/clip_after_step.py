"""Detects gradient clipping after the optimizer step."""

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.optimizer_steps import optimizer_name, stepping_optimizers


class ClipAfterStepSettings(Settings):
    """Thresholds of the rule ``CLIP_AFTER_STEP``."""

    min_late_clips: int = Field(
        2,
        ge=1,
        description="Minimum number of steps that are followed by a clipping before the next "
        "backward pass, for a finding.",
    )


def _judge(rule: Rule[ClipAfterStepSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    # The event "stepped" shows that an optimizer called its closure several times, or not at all.
    # The order of events then does not show whether a clipping is late.
    sequences = [s for s in trace.sequences if not s.find("stepped")]
    for optimizer in stepping_optimizers(trace):
        has_useful_clip = False
        num_late = first_late_step = 0
        for sequence in sequences:
            # A sequence begins after a step: a clipping before the first backward pass is late.
            backward = min(
                sequence.find("backward") + sequence.find("grad"), default=len(sequence.events)
            )
            clips = [i for i in sequence.find("clip") if sequence.events[i].object_id == optimizer]
            has_useful_clip |= any(i > backward for i in clips)
            # A clipping before the first step of the run cannot be late.
            if sequence.first_step > 1 and any(i < backward for i in clips):
                num_late += sequence.count
                first_late_step = first_late_step or sequence.first_step - 1
        if num_late < rule.settings.min_late_clips or has_useful_clip:
            continue
        findings.append(
            rule.finding(
                severity="error",
                step=first_late_step,
                what=f"{optimizer_name(trace, optimizer)}: gradients were clipped after {num_late} "
                "steps that had already used them, and before the next backward().",
                cause="The clipping has no effect: every step uses unclipped gradients.",
                fix="Clip between backward() and step().",
                num_late=num_late,
            )
        )
    return tuple(findings)


CLIP_AFTER_STEP = Rule(
    name="gradients are clipped before the optimizer step",
    fault="clip after step",
    priority=50,
    requires="Two calls of clip_grad_norm_ or clip_grad_value_.",
    contradicted_by="A clipping of the same parameters between backward() and step().",
    abstains="Some clippings are between backward() and step(), or the optimizer calls its "
    "closure several times per step or not at all.",
    settings=ClipAfterStepSettings(),
    judge=_judge,
)
