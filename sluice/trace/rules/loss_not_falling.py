"""Does the loss fall?"""

import math
import statistics

from sluice.trace.evidence.order import Mark
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.series import losses_of
from sluice.trace.rules.steps import optimizers_in, own_steps, total

_LEAST = 40
"""Known losses."""
_MOSTLY = 0.8
"""Of the steps."""


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    losses = [(s, v) for s, v in losses_of(trace) if math.isfinite(v)]
    passes = {len(n.losses) for n in trace.numbers}
    optimizers = optimizers_in(trace)
    if len(losses) < _LEAST or len(optimizers) != 1 or passes != {1}:
        return ()
    if _makes_its_targets(trace, optimizers[0]):
        return ()
    quarter = len(losses) // 4
    first = [v for _, v in losses[:quarter]]
    last = [v for _, v in losses[-quarter:]]
    lower = sum(b < a for a in first for b in last) / (len(first) * len(last))
    if lower >= 0.5:
        return ()
    return (
        rule.finding(
            severity="warning",
            step=losses[-quarter][0],
            what=f"The loss does not fall: its median is {statistics.median(first):.4g} in the "
            f"first {quarter} known steps and {statistics.median(last):.4g} in the last; of all "
            f"pairs the later one is lower in {lower:.0%}.",
            cause="What is learned does not help, or nothing is learned.",
            fix="Try to fit one single batch: a loss that does not fall there is a fault of the "
            "program, not of the data.",
            share_lower=lower,
            num_known=len(losses),
        ),
    )


def _makes_its_targets(trace: Trace, optimizer: int) -> bool:
    """Tell whether most steps ask a network for what another is to learn, or for its own slope.

    Such losses are measured against what moves itself: of Q-learning, of energies.
    """
    steps = own_steps(trace, optimizer)
    asking = [
        s for s in steps if any(_asks(s.word.marks[at]) for at in s.before("forward", "grad"))
    ]
    return total(tuple(asking)) >= _MOSTLY * total(steps)


def _asks(mark: Mark) -> bool:
    return mark.kind == "grad" or "grad" not in mark.flags


LOSS_NOT_FALLING = Rule(
    name="the loss falls",
    fault="loss not falling",
    requirement="TRACE-9",
    requires="40 known losses of one optimizer with one backward pass a step.",
    contradicted_by="Lower losses in the last quarter than in the first.",
    abstains="There are several optimizers or losses, or a gradient scaler; or networks make the "
    "targets.",
    judge=_judge,
)
