"""Is the loss a number?"""

import math

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.series import losses_of

_LEAST = 2


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    losses = losses_of(trace)
    bad = [i for i, (_, value) in enumerate(losses) if not math.isfinite(value)]
    if not bad:
        return ()
    stays = len(bad) >= _LEAST and bad[-1] == len(losses) - 1
    step, value = losses[bad[0]]
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


LOSS_NOT_FINITE = Rule(
    name="the loss is a number",
    fault="loss not finite",
    requirement="TRACE-8",
    requires="The losses of the backward passes.",
    contradicted_by="A finite loss at the same step.",
    abstains="The loss went through a gradient scaler, which may overflow.",
    judge=_judge,
)
