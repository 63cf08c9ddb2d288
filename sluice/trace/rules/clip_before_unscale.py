"""Are gradients unscaled before they are clipped?"""

import math
from statistics import median

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.series import measures_of
from sluice.trace.rules.steps import OwnStep, first, name_of, optimizers_in, own_steps, total

_LEAST_LOOKS, _MOST_HELD, _SAME = 5, 0.8, 0.01
"""Of the looks, so many at a norm that is the same within a share of it tell of a limit."""
_LEAST_LIMIT, _MOST_LIMIT, _TINY = 0.01, 1000.0, 0.01
"""Limits that people set, and a norm that is none."""


def _is_scaled(step: OwnStep) -> bool:
    """A clip stands after a scaled backward pass with no unscaling between."""
    marks = step.word.marks
    backward = step.last_backward
    if backward < 0 or "scaled" not in marks[backward].flags:
        return False
    unscaled = min((i for i in step.before("unscale") if i > backward), default=step.at)
    return any(
        backward < i < unscaled and marks[i].subject == step.end.subject
        for i in step.before("clip")
    )


def _by_hand(rule: Rule, trace: Trace, optimizer: int) -> Finding | None:
    """Tell of a norm that never changes, and is a limit only with the loss scale on it."""
    scales = {n.step: n.scale for n in trace.numbers if n.scale}
    told = [
        (step, math.hypot(*own.grad_norms), scales[step])
        for step, own in measures_of(trace, optimizer)
        if step in scales and own.grad_norms
    ]
    if len(told) < _LEAST_LOOKS or not all(math.isfinite(norm) for _, norm, _ in told):
        return None
    # It may have begun in the middle of the run.
    limit = median(norm * scale for _, norm, scale in told[-_LEAST_LOOKS:])
    is_held = [abs(norm * scale - limit) <= _SAME * limit for _, norm, scale in told]
    told = told[is_held.index(True) :] if True in is_held else []
    held = [look for look in told if abs(look[1] * look[2] - limit) <= _SAME * limit]
    is_rare = len(held) < max(_LEAST_LOOKS, _MOST_HELD * len(told))
    if is_rare or not _LEAST_LIMIT <= limit <= _MOST_LIMIT:
        return None
    if max(norm for _, norm, _ in held) > _TINY:
        return None
    step, norm, scale = held[0]
    return rule.finding(
        severity="error",
        step=step,
        what=f"{name_of(trace, optimizer)}: in {len(held)} of {len(told)} steps looked at the norm "
        f"of all gradients times the loss scale is {limit:.4g}, as if it were clipped to that: the "
        f"step itself finds {norm:.3g}, where the scale is {scale:.4g}.",
        cause="The limit meets gradients that are thousands of times too large: after unscaling "
        "almost nothing is left of them.",
        fix="Call scaler.unscale_(optimizer) before clipping.",
        num_scaled=len(held),
        num_steps=len(told),
    )


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for optimizer in optimizers_in(trace):
        steps = own_steps(trace, optimizer)
        scaled = tuple(filter(_is_scaled, steps))
        if not scaled:
            by_hand = _by_hand(rule, trace, optimizer)
            found += [by_hand] if by_hand is not None else []
            continue
        norms = [c.norm for n in trace.numbers for c in n.clips if c.optimizer == optimizer]
        limits = [c.max_norm for n in trace.numbers for c in n.clips if c.optimizer == optimizer]
        seen = f", the first at a norm of {norms[0]:.3g} over {limits[0]:.3g}" if norms else ""
        found.append(
            rule.finding(
                severity="error",
                step=first(scaled),
                what=f"{name_of(trace, optimizer)}: in {total(scaled)} of {total(steps)} steps "
                f"gradients were clipped while they still held the loss scale{seen}.",
                cause="The limit meets gradients that are thousands of times too large: after "
                "unscaling almost nothing is left of them.",
                fix="Call scaler.unscale_(optimizer) before clipping.",
                num_scaled=total(scaled),
                num_steps=total(steps),
            )
        )
    return tuple(found)


CLIP_BEFORE_UNSCALE = Rule(
    name="gradients are unscaled before they are clipped",
    fault="clip before unscale",
    requirement="TRACE-12",
    requires="A clipping after a backward pass of a scaled loss, or five looks at gradients whose "
    "loss was scaled.",
    contradicted_by="GradScaler.unscale_ between backward() and the clipping.",
    abstains="The scaler is disabled.",
    judge=_judge,
)
