"""Does the loss stay where training has brought it?"""

import math

from sluice.trace.evidence.measures import OptimizerMeasure
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.departure import departure
from sluice.trace.rules.rates import Rates, rates_of
from sluice.trace.rules.series import losses_of, measures_of, weights_of
from sluice.trace.rules.steps import name_of, optimizers_in

_GROWS = 3.0
"""Times the norm of all weights together, from the last look before to the first one after."""

_RISES = 5.0
"""Times every rate before it: what a rate is called raised from."""

_UNSEEN = 32
"""Steps until a rate is seen, at most: not each step is looked at closely."""


def _size(trace: Trace, own: OptimizerMeasure) -> float:
    return math.hypot(*(own.weight_norms[i] for i in weights_of(trace, own)))


def _raised(rates: Rates | None, step: int) -> tuple[float, float] | None:
    """Return the highest rate until shortly before a step, and a far higher one around it."""
    if rates is None:
        return None
    told = list(zip(rates.steps, rates.values, strict=True))
    old = max((v for s, v in told if s < step - _UNSEEN), default=0.0)
    new = max((v for s, v in told if abs(s - step) <= _UNSEEN), default=0.0)
    return (old, new) if 0 < old * _RISES <= new else None


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    stepping = optimizers_in(trace)
    left = departure(losses_of(trace)) if len(stepping) == 1 else None
    if left is None:
        return ()
    measures = measures_of(trace, stepping[0])
    before = [own for step, own in measures if step < left.step][-1:]
    later = [(step, own) for step, own in measures if step >= left.step][:1]
    if not before or not later or before[0].parameters != later[0][1].parameters:
        return ()
    size = _size(trace, before[0])
    growth = _size(trace, later[0][1]) / size if size else math.nan
    if not growth >= _GROWS or math.isinf(growth):
        return ()
    rates = _raised(rates_of(trace, stepping[0]), left.step)
    if rates is None:
        at = f"at a learning rate of {max(later[0][1].rates):.3g}"
        cause = (
            "A step went far past the valley: on a gradient far larger than those before it, or at "
            "a rate that was higher for a moment."
        )
        fix = (
            "Clip the gradients (clip_grad_norm_) and look at the rows of that step; a lower rate "
            "helps, too. Go on from a checkpoint of before."
        )
    else:
        at = f"as the learning rate went from {rates[0]:.3g} to {rates[1]:.3g}"
        cause = "Each step goes past the valley, and lands higher than it began."
        fix = (
            "Look at what sets the rate there, the schedule or a line of the loop; go on from a "
            "checkpoint of before."
        )
    return (
        rule.finding(
            severity="error",
            step=left.step,
            what=f"{name_of(trace, stepping[0])}: the loss left {left.before:.4g} at step "
            f"{left.step} and does not come back, {at}: its median is {left.after:.4g} from there "
            f"on, and at step {later[0][0]} the weights were {growth:,.1f} times as large.",
            cause=cause,
            fix=fix,
            loss_before=left.before,
            loss_after=left.after,
            weight_growth=growth,
            rate=max(later[0][1].rates) if rates is None else rates[1],
        ),
    )


LOSS_LEAVES = Rule(
    name="the loss stays where training has brought it",
    fault="rate too high",
    requirement="TRACE-9",
    requires="16 losses before one that is above all of them, 16 after it, and measured steps on "
    "both sides.",
    contradicted_by="A loss that comes back, or weights that keep their size.",
    abstains="There are several optimizers or a gradient scaler, or other parameters learn.",
    judge=_judge,
)
