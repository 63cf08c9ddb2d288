"""Is the learning rate low enough for the loss to stay?"""

import math

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.series import losses_of, measures_of, weights_of
from sluice.trace.rules.steps import name_of, optimizers_in

_START = 3
"""Losses at the start."""

_LEFT, _STAYS = 30.0, 5.0
"""Times the loss at the start: where it goes to, and what it does not come back under."""

_UPDATE = 0.1
"""Of the norm of a weight, by one step."""


def _departure(losses: tuple[tuple[int, float], ...]) -> tuple[int, float, float] | None:
    """Return the step of the first loss that has left for good, its highest, and the start."""
    first = [v for _, v in losses[:_START] if math.isfinite(v)]
    if len(losses) < 2 * _START or not first:
        return None
    start = min(first)
    high = [i for i, (_, v) in enumerate(losses) if not v <= _LEFT * start]
    if start <= 0 or not high:
        return None
    tail = [v for _, v in losses[high[0] :]]
    if any(v < _STAYS * start for v in tail[len(tail) // 2 :]):
        return None
    rising = [i for i, (_, v) in enumerate(losses[: high[0] + 1]) if not v <= 2 * start]
    before = [v for _, v in losses[: high[0] + 1] if math.isfinite(v)]
    top = max([v for v in tail if math.isfinite(v)] + before)
    return losses[rising[0]][0], top, start


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    stepping = optimizers_in(trace)
    if len(stepping) != 1:
        return ()
    left = _departure(losses_of(trace))
    if left is None:
        return ()
    step, top, start = left
    if top < 3 * start:  # it was not finite at once: no rate did that
        return ()
    ratios = [
        (own.update_norms[i] / own.weight_norms[i], at, max(own.rates))
        for at, own in measures_of(trace, stepping[0])
        if at <= step + 8
        for i in weights_of(trace, own)
        if own.weight_norms[i] > 0 and math.isfinite(own.update_norms[i])
    ]
    largest, at, rate = max(ratios, default=(0.0, 0, 0.0))
    if largest < _UPDATE:
        return ()
    return (
        rule.finding(
            severity="error",
            step=step,
            what=f"{name_of(trace, stepping[0])}: the loss rose from {start:.4g} to {top:.4g} and "
            f"does not come back; step {at} changed a weight by {largest:.0%} of its norm, at a "
            f"learning rate of {rate:.3g}.",
            cause="Each step goes past the valley, and lands higher than it began.",
            fix="Divide the learning rate by ten; warm it up over the first steps.",
            loss_at_start=start,
            largest_loss=top,
            update_ratio=largest,
            rate=rate,
        ),
    )


RATE_TOO_HIGH = Rule(
    name="the loss does not leave",
    fault="rate too high",
    requirement="TRACE-9",
    requires="Six losses that are above zero, of one optimizer, and a measured step.",
    contradicted_by="A loss that comes back, or steps that are small against the weights.",
    abstains="There are several optimizers or a gradient scaler, or the loss begins below zero.",
    judge=_judge,
)
