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

    min_steps: int = Field(3, ge=1, description="Measured steps required for a finding.")
    max_moved_share: float = Field(
        0.35,
        gt=0,
        le=1,
        description="The finding is an error if every measured step changes less than this share "
        "of the values with a gradient.",
    )
    max_median_moved_share: float = Field(
        0.4,
        gt=0,
        le=1,
        description="A finding is reported if the median of the measured steps changes less than "
        "this share of the values with a gradient.",
    )


def _judge(rule: Rule[Bf16UpdateLostSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for optimizer in stepping_optimizers(trace):
        shares = []
        for step, measured in measurements_of(trace, optimizer):
            moved = [
                measured.changed_shares[i]
                for i in weight_positions(trace, measured)
                if measured.changed_shares
            ]
            moved = [share for share in moved if math.isfinite(share)]
            if moved and max(measured.rates) > 0:
                shares.append((step, statistics.median(moved), max(measured.rates)))
        if len(shares) < rule.settings.min_steps:
            continue
        typical = statistics.median(share for _, share, _ in shares)
        largest = max(share for _, share, _ in shares)
        if typical >= rule.settings.max_median_moved_share:
            continue
        findings.append(
            rule.finding(
                severity="error" if largest < rule.settings.max_moved_share else "confirm",
                step=shares[0][0],
                what=f"{optimizer_name(trace, optimizer)}: a step changes {typical:.1%} of the "
                f"16-bit weights that have a gradient (median of {len(shares)} measured steps; "
                f"maximum {largest:.1%}; learning rate {shares[0][2]:.3g}).",
                cause="The update of a weight is smaller than half the distance to the next 16-bit "
                "number and is lost to rounding, so a step leaves most weights unchanged.",
                fix="Keep the weights in float32 and use torch.autocast, or raise the learning "
                "rate.",
                moved_share=typical,
                num_measured=len(shares),
            )
        )
    return tuple(findings)


BF16_UPDATE_LOST = Rule(
    name="a step changes 16-bit weights",
    fault="updates lost to rounding",
    priority=210,
    requires="Three measured steps of weights in bfloat16 or float16.",
    contradicted_by="A step that changes most weights with a gradient.",
    abstains="The learning rate is zero, or weights are in float32.",
    settings=Bf16UpdateLostSettings(),
    judge=_judge,
)
