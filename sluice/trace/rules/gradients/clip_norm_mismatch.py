"""Detects a clipping limit far below the usual gradient norm."""

from statistics import median

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.optimizer_steps import optimizer_name, stepping_optimizers


class ClipNormMismatchSettings(Settings):
    """Thresholds of the rule ``CLIP_NORM_MISMATCH``."""

    min_clips: int = Field(
        30,
        ge=1,
        description="A finding requires at least this number of recorded clippings by norm.",
    )
    min_clipped_share: float = Field(
        0.98,
        gt=0,
        le=1,
        description="A finding requires that the gradient norm exceeds the limit in at least this "
        "share of the clippings.",
    )
    min_norm_ratio: float = Field(
        100.0,
        gt=1,
        description="A finding requires that the median ratio of gradient norm to limit exceeds "
        "this.",
    )


_OPTIMIZERS_WITHOUT_NORMALIZATION = frozenset({"SGD", "LBFGS", "ASGD"})
"""Optimizers whose step grows with the gradient norm. Other optimizers normalize the gradient, or
use only its sign."""


def _judge(rule: Rule[ClipNormMismatchSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    class_names = {o.index: o.kind for m in trace.memberships for o in m.optimizers}
    findings = []
    for optimizer in stepping_optimizers(trace):
        clips = [
            (scalars.step, clip.norm, clip.max_norm)
            for scalars in trace.scalars
            for clip in scalars.clips
            if clip.optimizer == optimizer and clip.max_norm > 0
        ]
        if (
            len(clips) < rule.settings.min_clips
            or class_names.get(optimizer) not in _OPTIMIZERS_WITHOUT_NORMALIZATION
        ):
            continue
        clipped_steps = [step for step, norm, max_norm in clips if norm > max_norm]
        median_ratio = median(norm / max_norm for _, norm, max_norm in clips)
        if not (
            len(clipped_steps) >= rule.settings.min_clipped_share * len(clips)
            and median_ratio > rule.settings.min_norm_ratio
        ):
            continue
        findings.append(
            rule.finding(
                severity="warning",
                step=clipped_steps[0],
                what=f"{optimizer_name(trace, optimizer)}: in {len(clipped_steps)} of "
                f"{len(clips)} sampled clippings, the gradient norm exceeded the limit. The median "
                f"norm is {median_ratio:.3g} times the limit.",
                cause="Clipped gradients all have the same norm: the limit acts as a second "
                "learning rate, and the size of the gradient is ignored.",
                fix="Raise the limit to about the usual norm, or average the loss instead of "
                "summing it. Limits of 0.5 to 1 are common for transformers, and 5 to 10 for "
                "recurrent networks.",
                num_clipped=len(clipped_steps),
                num_clips=len(clips),
                ratio=median_ratio,
            )
        )
    return tuple(findings)


CLIP_NORM_MISMATCH = Rule(
    name="the clipping limit is close to the usual gradient norm",
    fault="clip norm mismatch",
    priority=320,
    requires="At least 30 clippings by norm.",
    contradicted_by="A limit that intentionally fixes the length of every step.",
    abstains="The optimizer is not SGD, ASGD or LBFGS. Adam, for example, normalizes the size of "
    "gradients.",
    settings=ClipNormMismatchSettings(),
    judge=_judge,
)
