"""Detects bursts in the first moments of Adam-like optimizers."""

import itertools
from collections.abc import Sequence
from statistics import mean, median, pstdev
from typing import NamedTuple

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.optimizer_steps import optimizer_name, stepping_optimizers


class UnstableAdamMomentsSettings(Settings):
    """Thresholds of the rule ``UNSTABLE_ADAM_MOMENTS``."""

    window_steps: int = Field(
        100,
        ge=2,
        description="Maximum length of the window before a burst [measured steps]. The norms of "
        "the first moment in this window are the usual norms.",
    )
    min_steps: int = Field(
        20,
        ge=2,
        description="A finding requires at least this number of measured steps before the burst.",
    )
    warmup_steps: int = Field(
        100,
        ge=0,
        description="Number of optimizer steps until the moments have settled. Only later steps "
        "are inspected.",
    )
    min_growth: float = Field(
        1.15,
        gt=1,
        description="In a burst, the norm at each measured step is more than this factor times the "
        "norm at the previous measured step.",
    )
    num_growth_steps: int = Field(
        5,
        ge=1,
        description="In a burst, the norm grows in at least this number of consecutive measured "
        "steps.",
    )
    min_z_score: float = Field(
        3.0,
        gt=0,
        description="A finding requires that the norm at the end of the burst exceeds the mean of "
        "the usual norms by more than this number of standard deviations.",
    )
    min_ratio: float = Field(
        10.0,
        gt=1,
        description="A finding requires that the norm at the end of the burst exceeds this factor "
        "times the median of the usual norms.",
    )


class _Burst(NamedTuple):
    """Norms of the first moment that grow quickly, and end far above the usual norms."""

    step: int
    """Step at which the burst ends."""
    norm: float
    """Norm at this step."""
    usual_norm: float
    """Median of the usual norms before the burst."""


def _find_first_burst(
    settings: UnstableAdamMomentsSettings, steps_and_norms: Sequence[tuple[int, float]]
) -> _Burst | None:
    """Return the first burst in the norms of the measured steps; None without one."""
    norms = [norm for _, norm in steps_and_norms]
    for end_index in range(settings.min_steps + settings.num_growth_steps, len(norms)):
        start_index = end_index - settings.num_growth_steps
        burst_norms = norms[start_index : end_index + 1]
        if not all(b > settings.min_growth * a for a, b in itertools.pairwise(burst_norms)):
            continue
        usual_norms = norms[max(start_index - settings.window_steps, 0) : start_index]
        threshold = mean(usual_norms) + settings.min_z_score * pstdev(usual_norms)
        if burst_norms[-1] > threshold and burst_norms[-1] > settings.min_ratio * median(
            usual_norms
        ):
            return _Burst(steps_and_norms[end_index][0], burst_norms[-1], median(usual_norms))
    return None


def _judge(rule: Rule[UnstableAdamMomentsSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for optimizer in stepping_optimizers(trace):
        steps_and_norms = [
            (m.step, o.moments["exp_avg"])
            for m in trace.statistics
            for o in m.optimizers
            if o.optimizer == optimizer
            and "exp_avg" in o.moments
            and o.state_step > rule.settings.warmup_steps
        ]
        burst = _find_first_burst(rule.settings, steps_and_norms)
        if burst is None:
            continue
        findings.append(
            rule.finding(
                severity="warning",
                step=burst.step,
                what=f"{optimizer_name(trace, optimizer)}: the norm of the first moment grew by "
                f"more than {rule.settings.min_growth - 1:.0%} in each of "
                f"{rule.settings.num_growth_steps} consecutive measured steps, to "
                f"{burst.norm:.3g}. The median norm before the burst was {burst.usual_norm:.3g}.",
                cause="Gradients grow faster than the optimizer can adapt: the next steps are "
                "too large.",
                fix="Lower the learning rate, clip gradients, or check the batches before this "
                "step.",
                norm=burst.norm,
                usual_norm=burst.usual_norm,
            )
        )
    return tuple(findings)


UNSTABLE_ADAM_MOMENTS = Rule(
    name="the moments of the optimizer are stable",
    fault="unstable Adam moments",
    priority=340,
    requires="At least 26 measured steps of an optimizer with first moments, after its first 100 "
    "steps.",
    contradicted_by="A loss that continues to decrease.",
    abstains="The norm stays within ten times its usual size.",
    settings=UnstableAdamMomentsSettings(),
    judge=_judge,
)
