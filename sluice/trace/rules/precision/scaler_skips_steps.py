"""Detects a gradient scaler that skips all steps from some step until the end of the run."""

import math

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
        description="A finding requires at least this number of consecutive skipped steps at the "
        "end of the run. 24 skipped steps reduce the scale from 2^16 to 2^-8.",
    )
    min_skips_if_scale_below_one: int = Field(
        5,
        ge=1,
        description="Replaces min_skips if the last recorded scale is below 1.",
    )


def _find_final_skips(steps: tuple[OptimizerStep, ...]) -> tuple[int, int]:
    """Return the first of the skipped steps at the end of the run, and the number of these steps.

    Returns (0, 0) if the last step was not skipped.
    """
    last_unskipped_step = max(
        (s.sequence.last_step for s in steps if s.end_event.kind == "step"), default=0
    )
    skipped_steps = [
        s
        for s in steps
        if s.end_event.kind == "skip" and s.sequence.last_step > last_unskipped_step
    ]
    if not skipped_steps:
        return 0, 0
    later_steps = [s for s in skipped_steps if s.sequence.first_step > last_unskipped_step]
    # A step sequence is stored once, with its first and last step. If a sequence with a skip first
    # occurred before the last unskipped step, the step at which it occurred again is unknown. So
    # the final skips are assumed to begin right after the last unskipped step.
    is_first_skip_unknown = len(later_steps) < len(skipped_steps)
    first_skipped_step = (
        last_unskipped_step + 1
        if is_first_skip_unknown
        else min(s.sequence.first_step for s in later_steps)
    )
    return first_skipped_step, sum(
        min(s.sequence.count, s.sequence.last_step - first_skipped_step + 1) for s in skipped_steps
    )


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
        first_skipped_step, num_skipped_steps = _find_final_skips(steps)
        scales = [
            s.scale for s in trace.scalars if s.scale is not None and s.step >= first_skipped_step
        ]
        last_scale = scales[-1] if scales else float("nan")
        settings = rule.settings
        min_skips = settings.min_skips_if_scale_below_one if last_scale < 1 else settings.min_skips
        if num_skipped_steps < min_skips:
            continue
        scale_text = "" if math.isnan(last_scale) else f"; the scale fell to {last_scale:.3g}"
        findings.append(
            rule.finding(
                severity="error",
                step=first_skipped_step,
                what=f"The gradient scaler skipped the last {num_skipped_steps} of "
                f"{count_steps(steps)} steps{scale_text}.",
                cause="A gradient is infinite or NaN at any scale: the weights no longer change.",
                fix="Find the first non-finite gradient: a division by 0, a log or root of 0, or "
                "a loss that overflows.",
                num_skipped=num_skipped_steps,
                num_steps=count_steps(steps),
                scale=last_scale,
            )
        )
    return tuple(findings)


SCALER_SKIPS_STEPS = Rule(
    name="the gradient scaler does not skip all of the last steps",
    fault="gradient scaler skips steps",
    priority=380,
    requires="At least five consecutive skipped steps at the end of the run.",
    contradicted_by="A later step that is not skipped.",
    abstains="The scale may still be too large: it is at least 1, and fewer than 24 steps were "
    "skipped.",
    settings=ScalerSkipsStepsSettings(),
    judge=_judge,
)
