"""Is the loss a number?"""

import math
from collections.abc import Sequence

from sluice.trace.evidence.trace import Trace
from sluice.trace.evidence.values import SpoiledFact
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.series import losses_of, names_in

_LEAST = 2
_MOST_NAMES = 3


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    losses = losses_of(trace)
    bad = [i for i, (_, value) in enumerate(losses) if not math.isfinite(value)]
    if not bad:
        return ()
    stays = len(bad) >= _LEAST and bad[-1] == len(losses) - 1
    step, value = losses[bad[0]]
    spoiled = next((s for s in trace.spoiled if s.step == step - 1), None)
    if spoiled is not None:
        return (_of_weights(rule, trace, spoiled, losses, num_bad=len(bad), stays=stays),)
    return (
        rule.finding(
            severity="error" if stays else "warning",
            step=step,
            what=f"The loss is {value} at step {step}, and at {len(bad)} of {len(losses)} known "
            "steps.",
            cause="Every step on it makes the weights worthless."
            if stays
            else "It came back: weights may have been spared.",
            fix="Look at the batch, the rate and the outputs of step "
            f"{max(step - 1, 1)} and {step}; start again from a checkpoint before it.",
            num_bad=len(bad),
            num_known=len(losses),
        ),
    )


def _of_weights(
    rule: Rule,
    trace: Trace,
    fact: SpoiledFact,
    losses: Sequence[tuple[int, float]],
    *,
    num_bad: int,
    stays: bool,
) -> Finding:
    names = names_in(trace)
    named = ", ".join(names.get(p, f"parameter {p}") for p in fact.parameters[:_MOST_NAMES])
    more = len(fact.parameters) - _MOST_NAMES
    return rule.finding(
        severity="error" if stays else "warning",
        step=fact.step,
        what=f"After step {fact.step} {named}{f' and {more} more' * (more > 0)} of "
        f"{fact.num_parameters} parameters are not finite, and what their optimizer keeps of their "
        f"gradients is. The loss is not finite at {num_bad} of {len(losses)} known steps.",
        cause="No gradient did that: something wrote to the weights between two steps, or the "
        "update itself is no number, as with eps=0 or a rate that is not finite.",
        fix="Look at what writes to these weights after a step, as a projection, a clamp, an "
        "average of weights, a checkpoint, and at the rate and eps of the optimizer; start again "
        "from a checkpoint before it.",
        num_bad=num_bad,
        num_known=len(losses),
    )


LOSS_NOT_FINITE = Rule(
    name="the loss is a number",
    fault="loss not finite",
    requirement="TRACE-8",
    requires="The losses of the backward passes.",
    contradicted_by="A finite loss at the same step.",
    abstains="The loss went through a gradient scaler, which may overflow.",
    judge=_judge,
)
