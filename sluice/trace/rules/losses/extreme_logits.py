"""Detects extreme logits in the first steps."""

import math

from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.loss_calls import by_function, training_losses

_MAX_LOGIT = 10.0
"""Largest absolute logit that is normal at the start."""
_MIN_LOSS_RATIO = 2.0
"""Ratio of the loss to the loss of equal probabilities for all classes."""
_NUM_FIRST_STEPS = 4
"""Number of steps that count as the start of training."""


def _judge(rule: Rule, trace: Trace) -> tuple[TraceFinding, ...]:
    found = []
    for facts in by_function(training_losses(trace, "cross_entropy")).values():
        early = [f for f in facts if f.step < _NUM_FIRST_STEPS and len(f.input_shape) > 1]
        wide = [
            f
            for f in early
            if max(abs(f.smallest), abs(f.largest)) > _MAX_LOGIT
            and f.reduction == "mean"
            and f.value > _MIN_LOSS_RATIO * math.log(f.input_shape[1])
        ]
        if not wide:
            continue
        fact = wide[0]
        found.append(
            rule.finding(
                severity="warning",
                step=fact.step + 1,
                what=f"Logits range from {fact.smallest:.3g} to {fact.largest:.3g} at step "
                f"{fact.step + 1}. The loss is {fact.value:.3g}; equal probabilities would give "
                f"{math.log(fact.input_shape[1]):.3g}.",
                cause="The network is confident and wrong before training: the first steps only "
                "undo that.",
                fix="Initialize the weights of the last layer with smaller values, or scale the "
                "inputs.",
                smallest=fact.smallest,
                largest=fact.largest,
            )
        )
    return tuple(found)


EXTREME_LOGITS = Rule(
    name="logits are moderate at the start of training",
    fault="extreme logits",
    priority=500,
    requires="A call of cross_entropy in the first four steps.",
    contradicted_by="A network that was pretrained on other classes.",
    abstains="The logits are large and correct.",
    judge=_judge,
)
