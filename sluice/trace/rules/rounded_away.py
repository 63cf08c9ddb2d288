"""Are updates large enough to move weights of 16 bits?"""

import math
import statistics

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.series import measures_of, weights_of
from sluice.trace.rules.steps import name_of, optimizers_in

_LEAST = 3
"""Measured steps."""

_NEVER_MORE, _FEW = 0.35, 0.4
"""Share of the numbers with a gradient that a step moves: the largest of all steps, the median."""


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for optimizer in optimizers_in(trace):
        shares = []
        for step, own in measures_of(trace, optimizer):
            told = [own.moved_shares[i] for i in weights_of(trace, own) if own.moved_shares]
            told = [share for share in told if math.isfinite(share)]
            if told and max(own.rates) > 0:
                shares.append((step, statistics.median(told), max(own.rates)))
        if len(shares) < _LEAST:
            continue
        typical = statistics.median(share for _, share, _ in shares)
        largest = max(share for _, share, _ in shares)
        if typical >= _FEW:
            continue
        found.append(
            rule.finding(
                severity="error" if largest < _NEVER_MORE else "confirm",
                step=shares[0][0],
                what=f"{name_of(trace, optimizer)}: a step moves {typical:.1%} of the 16-bit "
                f"weights that have a gradient (median of {len(shares)} measured steps, never "
                f"more than {largest:.1%}, learning rate {shares[0][2]:.3g}).",
                cause="The update of a weight is under half of its last digit and is rounded "
                "away: most weights never move.",
                fix="Keep the weights in float32 and use torch.autocast, or raise the learning "
                "rate.",
                moved_share=typical,
                num_measured=len(shares),
            )
        )
    return tuple(found)


ROUNDED_AWAY = Rule(
    name="a step moves weights of 16 bits",
    fault="updates rounded away",
    requirement="TRACE-10",
    requires="Three measured steps of weights in bfloat16 or half precision.",
    contradicted_by="Most weights with a gradient moving at a step.",
    abstains="The learning rate is zero, or weights are in single precision.",
    judge=_judge,
)
