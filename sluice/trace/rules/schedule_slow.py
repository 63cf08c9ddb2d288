"""Does a schedule get anywhere before the training ends?"""

import itertools

from sluice.trace.evidence.trace import SchedulerFact, Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.loaders import num_epochs
from sluice.trace.rules.rates import first_schedule_step, rates_of, schedule_steps
from sluice.trace.rules.steps import own_steps, total

_LEAST_STEPS, _LEAST = 40, 3
"""Of the optimizer, and of the schedule."""
_RARE = 5
"""Steps of the optimizer for one of the schedule, at least."""
_NEAR = 0.1
_FAR = 0.5
"""Of the rate that the schedule was made from."""


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for fact in trace.schedulers if not trace.num_untold else ():
        steps, of = schedule_steps(trace, fact.index), total(own_steps(trace, fact.optimizer))
        epochs = num_epochs(trace)
        is_rare = of >= _LEAST_STEPS and steps >= _LEAST and steps * _RARE <= of
        if not is_rare or (epochs and steps > epochs + 1):
            continue
        shown = _made_for_batches(fact, steps, of) or _rises_for_ever(fact, trace)
        if not shown:
            continue
        found.append(
            rule.finding(
                severity="error",
                step=first_schedule_step(trace, fact.index),
                what=f"{fact.kind} was stepped {steps} times in {of} steps of its optimizer: "
                f"{shown}.",
                cause="A schedule that counts batches is told of every epoch: the rate stays near "
                "where it began.",
                fix="Call scheduler.step() after every step of the optimizer, or give the schedule "
                "its length in epochs.",
                num_schedule_steps=steps,
                num_steps=of,
                end=fact.end,
            )
        )
    return tuple(found)


def _made_for_batches(fact: SchedulerFact, steps: int, of: int) -> str:
    if fact.end < _RARE * steps or abs(fact.end - of) > _NEAR * of:
        return ""
    return f"it was made for {fact.end}, as many as the optimizer makes"


def _rises_for_ever(fact: SchedulerFact, trace: Trace) -> str:
    rates, base = rates_of(trace, fact.optimizer), fact.options.get("base_lrs")
    if fact.kind != "LambdaLR" or rates is None or not isinstance(base, str):
        return ""
    meant, values = max(map(float, base.split(", "))), rates.values
    rises = len(values) > _LEAST and all(a < b for a, b in itertools.pairwise(values))
    if not rises or values[-1] > _FAR * meant:
        return ""
    return f"the rate rose to the end, and came to {values[-1]:.3g} of {meant:.3g}"


SCHEDULE_SLOW = Rule(
    name="a schedule gets somewhere before the training ends",
    fault="schedule hardly moves",
    requirement="TRACE-11",
    requires="A scheduler of a known end, or one that still warms up, stepped once in five steps "
    "of its optimizer or more rarely.",
    contradicted_by="A training that was cut short on purpose.",
    abstains="The schedule is stepped more often than once in an epoch, or its end is far from "
    "the number of batches, or some steps are not told of.",
    judge=_judge,
)
