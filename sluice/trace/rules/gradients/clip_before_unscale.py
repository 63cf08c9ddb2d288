"""Detects gradients that are clipped while they still contain the loss scale."""

import math
from statistics import median

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

_MIN_SAMPLES, _MIN_CONSTANT_SHARE, _MAX_RELATIVE_DEVIATION = 5, 0.8, 0.01
"""Manual clipping: number of sampled gradient norms, share of them at one value, and relative
deviation up to which two norms count as equal."""
_MIN_CLIP_NORM, _MAX_CLIP_NORM, _MAX_RESULTING_NORM = 0.01, 1000.0, 0.01
"""Range of usual clipping limits, and the norm after unscaling that is too small to train with."""


def _is_scaled(step: OptimizerStep) -> bool:
    """Whether the step clips after a scaled backward pass, without unscaling in between."""
    events = step.sequence.events
    backward = step.last_backward
    if backward < 0 or "scaled" not in events[backward].flags:
        return False
    unscaled = min((i for i in step.before("unscale") if i > backward), default=step.position)
    return any(
        backward < i < unscaled and events[i].object_id == step.end.object_id
        for i in step.before("clip")
    )


def _detect_manual_clipping(rule: Rule, trace: Trace, optimizer: int) -> TraceFinding | None:
    """Detect a constant norm that is a plausible limit only if it includes the loss scale."""
    scales = {n.step: n.scale for n in trace.scalars if n.scale}
    sampled = [
        (step, math.hypot(*own.grad_norms), scales[step])
        for step, own in measurements_of(trace, optimizer)
        if step in scales and own.grad_norms
    ]
    if len(sampled) < _MIN_SAMPLES or not all(math.isfinite(norm) for _, norm, _ in sampled):
        return None
    # Clipping may begin in the middle of the run.
    limit = median(norm * scale for _, norm, scale in sampled[-_MIN_SAMPLES:])
    is_constant = [
        abs(norm * scale - limit) <= _MAX_RELATIVE_DEVIATION * limit for _, norm, scale in sampled
    ]
    sampled = sampled[is_constant.index(True) :] if True in is_constant else []
    constant = [
        sample
        for sample in sampled
        if abs(sample[1] * sample[2] - limit) <= _MAX_RELATIVE_DEVIATION * limit
    ]
    is_rare = len(constant) < max(_MIN_SAMPLES, _MIN_CONSTANT_SHARE * len(sampled))
    if is_rare or not _MIN_CLIP_NORM <= limit <= _MAX_CLIP_NORM:
        return None
    if max(norm for _, norm, _ in constant) > _MAX_RESULTING_NORM:
        return None
    step, norm, scale = constant[0]
    return rule.finding(
        severity="error",
        step=step,
        what=f"{optimizer_name(trace, optimizer)}: in {len(constant)} of {len(sampled)} sampled "
        f"steps the norm of all gradients times the loss scale is {limit:.4g}, as if clipped to "
        f"that value. The norm used by the step is {norm:.3g}, at a loss scale of {scale:.4g}.",
        cause="The clipping limit is applied to gradients that are thousands of times too large; "
        "after unscaling almost nothing is left of them.",
        fix="Call scaler.unscale_(optimizer) before clipping.",
        num_scaled=len(constant),
        num_steps=len(sampled),
    )


def _judge(rule: Rule, trace: Trace) -> tuple[TraceFinding, ...]:
    found = []
    for optimizer in stepping_optimizers(trace):
        steps = steps_of(trace, optimizer)
        scaled = tuple(filter(_is_scaled, steps))
        if not scaled:
            manual = _detect_manual_clipping(rule, trace, optimizer)
            found += [manual] if manual is not None else []
            continue
        norms = [c.norm for n in trace.scalars for c in n.clips if c.optimizer == optimizer]
        limits = [c.max_norm for n in trace.scalars for c in n.clips if c.optimizer == optimizer]
        seen = f", the first with a norm of {norms[0]:.3g} over {limits[0]:.3g}" if norms else ""
        found.append(
            rule.finding(
                severity="error",
                step=first_step_of(scaled),
                what=f"{optimizer_name(trace, optimizer)}: in {count_steps(scaled)} of "
                f"{count_steps(steps)} steps gradients were clipped while they still contained "
                f"the loss scale{seen}.",
                cause="The clipping limit is applied to gradients that are thousands of times "
                "too large; after unscaling almost nothing is left of them.",
                fix="Call scaler.unscale_(optimizer) before clipping.",
                num_scaled=count_steps(scaled),
                num_steps=count_steps(steps),
            )
        )
    return tuple(found)


CLIP_BEFORE_UNSCALE = Rule(
    name="gradients are unscaled before they are clipped",
    fault="clip before unscale",
    priority=40,
    requires="A clipping after the backward pass of a scaled loss, or five sampled gradients of "
    "a scaled loss.",
    contradicted_by="A call of GradScaler.unscale_ between backward() and the clipping.",
    abstains="The scaler is disabled.",
    judge=_judge,
)
