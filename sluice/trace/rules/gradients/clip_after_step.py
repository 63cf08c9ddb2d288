"""Detects gradient clipping after the optimizer step."""

from dataclasses import dataclass

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
        description="Minimum number of steps with a clipping between the step and the next "
        "backward pass, for a finding.",
    )


@dataclass(slots=True)
class _Clips:
    """Clipping calls of one optimizer."""

    num_late: int = 0
    """Number of steps that were followed by a clipping before the next backward pass."""
    num_useful: int = 0
    """Number of clippings between a backward pass and its step."""
    first_step: int = 0
    """Step before the first late clipping; 0 without one."""


def _count_clips(trace: Trace) -> dict[int, _Clips]:
    """Count clippings before (late) and after (useful) the first backward pass of their step."""
    by_optimizer: dict[int, _Clips] = {}
    for sequence in trace.sequences:
        positions = sequence.find("clip")
        if not positions or sequence.find("stepped"):
            continue
        backward = min(
            sequence.find("backward") + sequence.find("grad"), default=len(sequence.events)
        )
        late_optimizers = {sequence.events[i].object_id for i in positions if i < backward}
        for i in positions:
            clips = by_optimizer.setdefault(sequence.events[i].object_id, _Clips())
            clips.num_useful += sequence.count * (i > backward)
        # A clipping before the first step cannot be late.
        for optimizer in late_optimizers if sequence.first_step > 1 else ():
            clips = by_optimizer[optimizer]
            clips.num_late += sequence.count
            clips.first_step = clips.first_step or sequence.first_step - 1
    return by_optimizer


def _judge(rule: Rule[ClipAfterStepSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings, clips_by_optimizer = [], _count_clips(trace)
    for optimizer in stepping_optimizers(trace):
        clips = clips_by_optimizer.get(optimizer, _Clips())
        if clips.num_late < rule.settings.min_late_clips or clips.num_useful:
            continue
        findings.append(
            rule.finding(
                severity="error",
                step=clips.first_step,
                what=f"{optimizer_name(trace, optimizer)}: gradients were clipped "
                f"{clips.num_late} times, each time after the step that used them and before the "
                "next backward().",
                cause="The clipping has no effect: every step uses unclipped gradients.",
                fix="Clip between backward() and step().",
                num_late=clips.num_late,
            )
        )
    return tuple(findings)


CLIP_AFTER_STEP = Rule(
    name="gradients are clipped before the optimizer step",
    fault="clip after step",
    priority=50,
    requires="Two calls of clip_grad_norm_ or clip_grad_value_.",
    contradicted_by="A clipping of the same parameters between backward() and step().",
    abstains="Some clippings are between backward() and step().",
    settings=ClipAfterStepSettings(),
    judge=_judge,
)
