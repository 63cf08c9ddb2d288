"""Detects gradients that are clipped while they still contain the loss scale."""

import math
from statistics import median

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.measurements import measurements_of
from sluice.trace.rules._helpers.optimizer_steps import (
    OptimizerStep,
    count_steps,
    first_step_of,
    optimizer_name,
    stepping_optimizers,
    steps_of,
)


class ClipBeforeUnscaleSettings(Settings):
    """Thresholds of the rule ``CLIP_BEFORE_UNSCALE``."""

    min_samples: int = Field(
        5,
        ge=1,
        description="Minimum number of sampled norms that equal the limit when multiplied by the "
        "loss scale, to detect manual clipping. The limit is the median over this number of last "
        "samples.",
    )
    min_constant_share: float = Field(
        0.8,
        gt=0,
        le=1,
        description="Minimum share of the sampled norms that equal the limit when multiplied by "
        "the loss scale, to detect manual clipping. Samples before the first equal one do not "
        "count.",
    )
    max_relative_deviation: float = Field(
        0.01,
        gt=0,
        description="Maximum difference between the limit and a norm times the loss scale for the "
        "two to count as equal, relative to the limit.",
    )
    min_clip_norm: float = Field(
        0.01, gt=0, description="Smallest limit that is usual for clipping."
    )
    max_clip_norm: float = Field(
        1000.0, gt=0, description="Largest limit that is usual for clipping."
    )
    max_resulting_norm: float = Field(
        0.01,
        gt=0,
        description="Maximum norm after unscaling for a finding about manual clipping. Gradients "
        "with this norm are too small to train.",
    )


_CAUSE = (
    "The clipping limit is applied to gradients that are multiplied by the loss scale, often by "
    "thousands. After unscaling, the clipped gradients are almost zero."
)
_FIX = "Call scaler.unscale_(optimizer) before clipping."


def _clips_scaled_gradients(step: OptimizerStep) -> bool:
    """Whether the step clips after a scaled backward pass, without unscaling in between."""
    events = step.sequence.events
    backward = step.last_backward
    if backward < 0 or "scaled" not in events[backward].flags:
        return False
    unscale = min((i for i in step.find_before("unscale") if i > backward), default=step.position)
    return any(
        backward < i < unscale and events[i].object_id == step.end.object_id
        for i in step.find_before("clip")
    )


def _detect_manual_clipping(
    rule: Rule[ClipBeforeUnscaleSettings], trace: Trace, optimizer: int
) -> TraceFinding | None:
    """Detect gradients whose norm, times the loss scale, is a constant and plausible limit."""
    scales = {n.step: n.scale for n in trace.scalars if n.scale}
    sampled = [
        (step, math.hypot(*measured.grad_norms), scales[step])
        for step, measured in measurements_of(trace, optimizer)
        if step in scales and measured.grad_norms
    ]
    if len(sampled) < rule.settings.min_samples or not all(
        math.isfinite(norm) for _, norm, _ in sampled
    ):
        return None
    # Clipping may begin in the middle of the run.
    limit = median(norm * scale for _, norm, scale in sampled[-rule.settings.min_samples :])
    at_limit = [
        sample
        for sample in sampled
        if abs(sample[1] * sample[2] - limit) <= rule.settings.max_relative_deviation * limit
    ]
    is_plausible = rule.settings.min_clip_norm <= limit <= rule.settings.max_clip_norm
    if len(at_limit) < rule.settings.min_samples or not is_plausible:
        return None
    sampled = sampled[sampled.index(at_limit[0]) :]
    if (
        len(at_limit) < rule.settings.min_constant_share * len(sampled)
        or max(norm for _, norm, _ in at_limit) > rule.settings.max_resulting_norm
    ):
        return None
    step, norm, scale = at_limit[0]
    return rule.finding(
        severity="error",
        step=step,
        what=f"{optimizer_name(trace, optimizer)}: in {len(at_limit)} of {len(sampled)} sampled "
        f"steps the norm of all gradients times the loss scale is {limit:.4g}, as if clipped to "
        f"that value. The norm used by the step is {norm:.3g}, at a loss scale of {scale:.4g}.",
        cause=_CAUSE,
        fix=_FIX,
        num_scaled=len(at_limit),
        num_steps=len(sampled),
    )


def _judge(rule: Rule[ClipBeforeUnscaleSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for optimizer in stepping_optimizers(trace):
        steps = steps_of(trace, optimizer)
        clipping_steps = tuple(filter(_clips_scaled_gradients, steps))
        if not clipping_steps:
            manual_finding = _detect_manual_clipping(rule, trace, optimizer)
            findings += [manual_finding] if manual_finding is not None else []
            continue
        clips = [c for n in trace.scalars for c in n.clips if c.optimizer == optimizer]
        example = (
            f", for example a norm of {clips[0].norm:.3g} to a limit of {clips[0].max_norm:.3g}"
            if clips
            else ""
        )
        findings.append(
            rule.finding(
                severity="error",
                step=first_step_of(clipping_steps),
                what=f"{optimizer_name(trace, optimizer)}: in {count_steps(clipping_steps)} of "
                f"{count_steps(steps)} steps gradients were clipped while they still contained "
                f"the loss scale{example}.",
                cause=_CAUSE,
                fix=_FIX,
                num_scaled=count_steps(clipping_steps),
                num_steps=count_steps(steps),
            )
        )
    return tuple(findings)


CLIP_BEFORE_UNSCALE = Rule(
    name="gradients are unscaled before they are clipped",
    fault="clip before unscale",
    priority=40,
    requires="Either a clipping after the backward pass of a scaled loss, or five sampled gradient "
    "norms of a scaled loss.",
    contradicted_by="A call of GradScaler.unscale_ between backward() and the clipping.",
    abstains="The scaler is disabled.",
    settings=ClipBeforeUnscaleSettings(),
    judge=_judge,
)
