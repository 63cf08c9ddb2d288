"""Detects updates of bfloat16 or float16 weights that are lost to rounding."""

import math
import statistics

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.measurements import measurements_of, weight_positions
from sluice.trace.rules._helpers.optimizer_steps import optimizer_name, stepping_optimizers


class Bf16UpdateLostSettings(Settings):
    """Thresholds of the rule ``BF16_UPDATE_LOST``."""

    min_steps: int = Field(
        3, ge=1, description="A finding requires at least this number of measured steps."
    )
    max_changed_share: float = Field(
        0.35,
        gt=0,
        le=1,
        description="Severity 'error' requires that the changed share of every measured step is "
        "below this value. The changed share of a step is the median over the weight tensors. The "
        "changed share of a tensor is the share of values that the step changes, among the sampled "
        "values whose gradient is not 0.",
    )
    max_median_changed_share: float = Field(
        0.4,
        gt=0,
        le=1,
        description="A finding requires that the median of the changed shares of all measured "
        "steps is below this value.",
    )


def _judge(rule: Rule[Bf16UpdateLostSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for optimizer in stepping_optimizers(trace):
        steps, step_shares, rates = [], [], []
        for step, step_statistics in measurements_of(trace, optimizer):
            # The changed share is NaN for types other than bfloat16 and float16.
            weight_shares = [
                step_statistics.changed_shares[i]
                for i in weight_positions(trace, step_statistics)
                if step_statistics.changed_shares
                and math.isfinite(step_statistics.changed_shares[i])
            ]
            if weight_shares and max(step_statistics.rates) > 0:
                steps.append(step)
                step_shares.append(statistics.median(weight_shares))
                rates.append(max(step_statistics.rates))
        if len(steps) < rule.settings.min_steps:
            continue
        median_share, largest_share = statistics.median(step_shares), max(step_shares)
        if median_share >= rule.settings.max_median_changed_share:
            continue
        findings.append(
            rule.finding(
                severity="error" if largest_share < rule.settings.max_changed_share else "confirm",
                step=steps[0],
                what=f"{optimizer_name(trace, optimizer)}: a step changes {median_share:.1%} of "
                f"the 16-bit weights that have a gradient (median of {len(steps)} "
                f"measured steps; maximum {largest_share:.1%}; learning rate {rates[0]:.3g}).",
                cause="The update of a weight is smaller than half the distance to the next 16-bit "
                "number and is lost to rounding, so a step leaves most weights unchanged.",
                fix="Keep the weights in float32 and use torch.autocast, or raise the learning "
                "rate.",
                median_changed_share=median_share,
                num_measured=len(steps),
            )
        )
    return tuple(findings)


BF16_UPDATE_LOST = Rule(
    name="a step changes 16-bit weights",
    fault="updates lost to rounding",
    priority=210,
    requires="At least three measured steps of weights in bfloat16 or float16.",
    contradicted_by="A step that changes most weights with a gradient.",
    abstains="The learning rate is zero, or weights are in float32.",
    settings=Bf16UpdateLostSettings(),
    judge=_judge,
)
