"""Are logits moderate at the start?"""

import math

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.losses import by_kind, learning_losses

_LIMIT = 10.0
_WORSE = 2.0
"""Times the loss of an answer that favours no class."""
_FIRST = 4


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for facts in by_kind(learning_losses(trace, "cross_entropy")).values():
        early = [f for f in facts if f.step < _FIRST and len(f.input_shape) > 1]
        wide = [
            f
            for f in early
            if max(abs(f.smallest), abs(f.largest)) > _LIMIT
            and f.reduction == "mean"
            and f.value > _WORSE * math.log(f.input_shape[1])
        ]
        if not wide:
            continue
        fact = wide[0]
        found.append(
            rule.finding(
                severity="warning",
                step=fact.step + 1,
                what=f"Logits lie between {fact.smallest:.3g} and {fact.largest:.3g} at step "
                f"{fact.step + 1}, and the loss is {fact.value:.3g}, where an even answer has "
                f"{math.log(fact.input_shape[1]):.3g}.",
                cause="The network is sure and wrong before it has learned anything: the first "
                "steps only undo that.",
                fix="Make the weights of the last layer smaller at the start, or scale the inputs.",
                smallest=fact.smallest,
                largest=fact.largest,
            )
        )
    return tuple(found)


LOGITS_EXTREME = Rule(
    name="logits are moderate at the start",
    fault="logits extreme",
    requirement="TRACE-14",
    requires="A call of cross_entropy in the first four steps.",
    contradicted_by="A network that was trained before, on other classes.",
    abstains="The logits are large and right.",
    judge=_judge,
)
