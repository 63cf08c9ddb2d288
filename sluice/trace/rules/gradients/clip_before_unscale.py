"""Detects gradients that are clipped while they are still multiplied by the loss scale."""

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
    """Thresholds of the rule ``CLIP_BEFORE_UNSCALE``. All of them are for manual clipping.

    Manual clipping, without a torch function, causes no event. It is detected from the gradient
    norms after unscaling: if scaled gradients are clipped to a limit, the product of the norm after
    unscaling and the loss scale equals this limit at every step.
    """

    min_samples: int = Field(
        5,
        ge=1,
        description="A finding about manual clipping requires at least this number of sampled "
        "steps at the limit, where gradient norm times loss scale equals the clipping limit. The "
        "limit is estimated as the median of this product in the last min_samples sampled steps.",
    )
    min_constant_share: float = Field(
        0.8,
        gt=0,
        le=1,
        description="A finding about manual clipping requires that at least this share of the "
        "sampled steps are at the limit. Steps before the first step at the limit do not count.",
    )
    max_relative_deviation: float = Field(
        0.01,
        gt=0,
        description="A sampled step is at the limit if gradient norm times loss scale differs from "
        "the limit by at most this share of the limit.",
    )
    min_clip_norm: float = Field(
        0.01,
        gt=0,
        description="A finding about manual clipping requires an estimated limit of at least this "
        "value, which is below the usual limits.",
    )
    max_clip_norm: float = Field(
        1000.0,
        gt=0,
        description="A finding about manual clipping requires an estimated limit of at most this "
        "value, which is above the usual limits.",
    )
    max_resulting_norm: float = Field(
        0.01,
        gt=0,
        description="A finding about manual clipping requires that the gradient norm after "
        "unscaling is at most this in every step at the limit. Such gradients are too small to "
        "train.",
    )


_CAUSE = (
    "The clipping limit is applied to gradients that are multiplied by the loss scale, often by "
    "thousands. After unscaling, the clipped gradients are almost zero."
)
_FIX = "Call scaler.unscale_(optimizer) before clipping."


def _clips_scaled_gradients(step: OptimizerStep) -> bool:
    """Whether the step clips after a scaled backward pass, without unscaling in between."""
    events = step.sequence.events
    last_backward = step.last_backward_position
    if last_backward < 0 or "scaled" not in events[last_backward].flags:
        return False
    first_unscale = min(
        (i for i in step.find_before("unscale") if i > last_backward), default=step.end_position
    )
    return any(
        last_backward < i < first_unscale and events[i].object_id == step.end_event.object_id
        for i in step.find_before("clip")
    )


def _detect_manual_clipping(
    rule: Rule[ClipBeforeUnscaleSettings], trace: Trace, optimizer: int
) -> TraceFinding | None:
    """Return a finding about manual clipping if gradient norm times loss scale is constant."""
    settings = rule.settings
    scales = {scalars.step: scalars.scale for scalars in trace.scalars if scalars.scale}
    samples = [
        (step, math.hypot(*statistics.grad_norms), scales[step])
        for step, statistics in measurements_of(trace, optimizer)
        if step in scales and statistics.grad_norms
    ]
    if len(samples) < settings.min_samples or not all(math.isfinite(n) for _, n, _ in samples):
        return None
    # The last samples determine the limit, because clipping may begin in the middle of the run.
    limit = median(norm * scale for _, norm, scale in samples[-settings.min_samples :])
    samples_at_limit = [
        (step, norm, scale)
        for step, norm, scale in samples
        if abs(norm * scale - limit) <= settings.max_relative_deviation * limit
    ]
    is_usual_limit = settings.min_clip_norm <= limit <= settings.max_clip_norm
    if len(samples_at_limit) < settings.min_samples or not is_usual_limit:
        return None
    num_samples_since_clipping = len(samples) - samples.index(samples_at_limit[0])
    if (
        len(samples_at_limit) < settings.min_constant_share * num_samples_since_clipping
        or max(norm for _, norm, _ in samples_at_limit) > settings.max_resulting_norm
    ):
        return None
    step, norm, scale = samples_at_limit[0]
    return rule.finding(
        severity="error",
        step=step,
        what=f"{optimizer_name(trace, optimizer)}: in {len(samples_at_limit)} of "
        f"{num_samples_since_clipping} sampled steps the norm of all gradients times the loss "
        f"scale is {limit:.4g}, as if the gradients were clipped to this value. Step "
        f"{step} uses gradients with a norm of {norm:.3g}, at a loss scale of {scale:.4g}.",
        cause=_CAUSE,
        fix=_FIX,
        num_scaled=len(samples_at_limit),
        num_steps=num_samples_since_clipping,
    )


def _judge(rule: Rule[ClipBeforeUnscaleSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for optimizer in stepping_optimizers(trace):
        steps = steps_of(trace, optimizer)
        clipping_steps = tuple(filter(_clips_scaled_gradients, steps))
        if not clipping_steps:
            finding = _detect_manual_clipping(rule, trace, optimizer)
            if finding is not None:
                findings.append(finding)
            continue
        clips = [c for scalars in trace.scalars for c in scalars.clips if c.optimizer == optimizer]
        example_text = (
            f", for example from a norm of {clips[0].norm:.3g} to a limit of "
            f"{clips[0].max_norm:.3g}"
            if clips
            else ""
        )
        findings.append(
            rule.finding(
                severity="error",
                step=first_step_of(clipping_steps),
                what=f"{optimizer_name(trace, optimizer)}: in {count_steps(clipping_steps)} of "
                f"{count_steps(steps)} steps gradients were clipped while they were still "
                f"multiplied by the loss scale{example_text}.",
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
    requires="Either a clipping after the backward pass of a scaled loss, or at least five sampled "
    "gradient norms of a scaled loss.",
    contradicted_by="A call of GradScaler.unscale_ between backward() and the clipping.",
    abstains="The scaler is disabled.",
    settings=ClipBeforeUnscaleSettings(),
    judge=_judge,
)
