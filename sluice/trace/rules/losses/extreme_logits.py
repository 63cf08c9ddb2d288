"""Detects extreme logits before the first optimizer step."""

import math

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.loss_calls import group_by_function, training_loss_calls


class ExtremeLogitsSettings(Settings):
    """Thresholds of the rule ``EXTREME_LOGITS``."""

    max_logit: float = Field(
        10.0,
        gt=0,
        description="A finding requires that the absolute value of a logit exceeds this before the "
        "first optimizer step.",
    )
    min_loss_ratio: float = Field(
        2.0,
        gt=0,
        description="A finding requires a loss of more than this factor times ln(number of "
        "classes), which is the loss of equal probabilities for all classes.",
    )


def _judge(rule: Rule[ExtremeLogitsSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for records in group_by_function(training_loss_calls(trace, "cross_entropy")).values():
        # Only calls before the first step count. Later, extreme logits may be caused by an update,
        # for example by a learning rate that is too high.
        extreme_calls = (
            r
            for r in records
            if r.step == 0
            and len(r.input_shape) > 1
            and max(abs(r.smallest), abs(r.largest)) > rule.settings.max_logit
            and r.reduction == "mean"
            and r.value > rule.settings.min_loss_ratio * math.log(r.input_shape[1])
        )
        record = next(extreme_calls, None)
        if record is None:
            continue
        findings.append(
            rule.finding(
                severity="warning",
                step=1,
                what=f"Logits range from {record.smallest:.3g} to {record.largest:.3g} at step 1. "
                f"The loss is {record.value:.3g}; equal probabilities would give "
                f"{math.log(record.input_shape[1]):.3g}.",
                cause="The network is confident and wrong before training. The first steps only "
                "make the logits smaller.",
                fix="Initialize the weights of the last layer with smaller values, or scale the "
                "inputs.",
                smallest=record.smallest,
                largest=record.largest,
            )
        )
    return tuple(findings)


EXTREME_LOGITS = Rule(
    name="logits are moderate at the start of training",
    fault="extreme logits",
    priority=500,
    requires="A call of cross_entropy with gradients enabled, before the first optimizer step.",
    contradicted_by="A network that was pretrained on other classes.",
    abstains="The logits are large and correct, or the loss is not a mean.",
    settings=ExtremeLogitsSettings(),
    judge=_judge,
)
