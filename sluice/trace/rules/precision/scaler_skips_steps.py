"""Detects a gradient scaler that skips all steps until the end."""

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.optimizer_steps import OptimizerStep, count_steps, steps_of


class ScalerSkipsStepsSettings(Settings):
    """Thresholds of the rule ``SCALER_SKIPS_STEPS``."""

    min_skips: int = Field(
        24,
        ge=1,
        description="Consecutive skipped steps that are conclusive at any scale: 24 skipped steps "
        "halve the scale from 2^16 to less than 2^-7.",
    )
    min_skips_below_one: int = Field(
        5, ge=1, description="Consecutive skipped steps required when the scale is below 1."
    )


def _skipped_at_the_end(steps: tuple[OptimizerStep, ...]) -> tuple[int, int]:
    """Return the first step from which on all steps were skipped, and their count; else (0, 0)."""
    last_made = max((s.sequence.last_step for s in steps if s.end.kind == "step"), default=0)
    since = [s for s in steps if s.end.kind == "skip" and s.sequence.last_step > last_made]
    if not since:
        return 0, 0
    after = [s for s in since if s.sequence.first_step > last_made]
    # A sequence that also occurred before the last successful step continues right after it.
    first = last_made + 1 if len(after) < len(since) else min(s.sequence.first_step for s in after)
    return first, sum(min(s.sequence.count, s.sequence.last_step - first + 1) for s in since)


def _judge(rule: Rule[ScalerSkipsStepsSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    skipping_optimizers = {
        event.object_id
        for sequence in trace.sequences
        for event in sequence.events
        if event.kind == "skip"
    }
    for optimizer in sorted(skipping_optimizers):
        steps = steps_of(trace, optimizer)
        since, num = _skipped_at_the_end(steps)
        scales = [n.scale for n in trace.scalars if n.scale is not None and n.step >= since]
        scale = scales[-1] if scales else float("nan")
        if num < rule.settings.min_skips_below_one or not (
            num >= rule.settings.min_skips or scale < 1
        ):
            continue
        findings.append(
            rule.finding(
                severity="error",
                step=since,
                what=f"The gradient scaler skipped the last {num} of {count_steps(steps)} steps; "
                f"the scale fell to {scale:.3g}.",
                cause="A gradient is infinite or NaN at any scale: the weights no longer change.",
                fix="Find the first non-finite gradient: a division by 0, a log or root of 0, or "
                "a loss that overflows.",
                num_skipped=num,
                num_steps=count_steps(steps),
                scale=scale,
            )
        )
    return tuple(findings)


SCALER_SKIPS_STEPS = Rule(
    name="the gradient scaler does not skip every step",
    fault="gradient scaler skips steps",
    priority=380,
    requires="Five consecutive skipped steps at the end of the run.",
    contradicted_by="A later step that is not skipped.",
    abstains="The scale may still be too large: it is at least 1, and fewer than 24 steps were "
    "skipped.",
    settings=ScalerSkipsStepsSettings(),
    judge=_judge,
)
