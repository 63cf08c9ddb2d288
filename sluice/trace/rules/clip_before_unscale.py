"""Are gradients unscaled before they are clipped?"""

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.steps import OwnStep, first, name_of, optimizers_in, own_steps, total


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


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for optimizer in optimizers_in(trace):
        steps = own_steps(trace, optimizer)
        scaled = tuple(filter(_is_scaled, steps))
        if not scaled:
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
    requires="A clipping after a backward pass of a scaled loss.",
    contradicted_by="GradScaler.unscale_ between backward() and the clipping.",
    abstains="The scaler is disabled.",
    judge=_judge,
)
