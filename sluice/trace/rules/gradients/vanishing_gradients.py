"""Detects gradients that vanish in the layers far from the loss."""

import math

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.measurements import (
    measurements_of,
    parameter_names,
    weight_positions,
)
from sluice.trace.rules._helpers.optimizer_steps import optimizer_name, stepping_optimizers


class VanishingGradientsSettings(Settings):
    """Thresholds of the rule ``VANISHING_GRADIENTS``."""

    min_steps: int = Field(
        4,
        ge=1,
        description="A finding requires at least this number of measured steps with a vanishing "
        "gradient.",
    )
    min_weights_per_step: int = Field(
        4,
        ge=1,
        description="A measured step counts only if at least this number of weights was measured.",
    )
    max_ratio: float = Field(
        1e-6,
        gt=0,
        description="Each weight has a ratio of gradient norm to weight norm. A gradient vanishes "
        "if its ratio is positive and below this share of the largest ratio in the step.",
    )


_PARAMETRIZED = ".parametrizations."
"""Part of the name of a parametrized weight. Such weights are left out. Weight normalization, for
example, splits a weight into a length and a direction. The gradient of the direction is always
orthogonal to the direction, and 0 for a direction with a single element. The norm of this gradient
therefore does not show whether gradients vanish."""


def _judge(rule: Rule[VanishingGradientsSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    names = parameter_names(trace)
    findings = []
    for optimizer in stepping_optimizers(trace):
        measurements = measurements_of(trace, optimizer)
        vanishing_gradients: list[tuple[int, int, float]] = []
        for step, statistics in measurements:
            ratios = [
                (statistics.grad_norms[i] / statistics.weight_norms[i], statistics.parameters[i])
                for i in weight_positions(trace, statistics)
                if statistics.weight_norms[i] > 0
                and math.isfinite(statistics.grad_norms[i])
                and _PARAMETRIZED not in names[statistics.parameters[i]]
            ]
            if len(ratios) < rule.settings.min_weights_per_step:
                continue
            largest_ratio = max(ratio for ratio, _ in ratios)
            smallest_ratio, parameter = min(ratios, key=lambda pair: pair[0])
            if 0 < smallest_ratio < rule.settings.max_ratio * largest_ratio:
                vanishing_gradients.append((step, parameter, smallest_ratio / largest_ratio))
        if len(vanishing_gradients) < max(rule.settings.min_steps, 0.8 * len(measurements)):
            continue
        step, parameter, relative_ratio = vanishing_gradients[0]
        findings.append(
            rule.finding(
                severity="warning",
                step=step,
                what=f"{optimizer_name(trace, optimizer)}: in {len(vanishing_gradients)} of "
                f"{len(measurements)} measured steps, the smallest ratio of gradient norm to "
                f"weight norm is below {rule.settings.max_ratio:.0e} times the largest "
                f"ratio. At step {step}, the ratio of {names[parameter]} is {relative_ratio:.1e} "
                "times the largest ratio.",
                cause="The gradient shrinks from layer to layer, so the layers far from the loss "
                "do not learn.",
                fix="Use residual connections, normalization layers, or an activation function "
                "that does not saturate.",
                share=relative_ratio,
                num_vanishing=len(vanishing_gradients),
            )
        )
    return tuple(findings)


VANISHING_GRADIENTS = Rule(
    name="gradients do not vanish between layers",
    fault="vanishing gradients",
    priority=250,
    requires="At least four measured steps, each with at least four measured weights.",
    contradicted_by="A ratio of gradient norm to weight norm that is as large for this weight as "
    "for other weights.",
    abstains="Gradients are exactly zero (other rules report such gradients); the weight is "
    "parametrized; or fewer than eight in ten measured steps have a vanishing gradient.",
    settings=VanishingGradientsSettings(),
    judge=_judge,
)
