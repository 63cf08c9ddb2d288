"""Does the learning rate leave 0?"""

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule, Severity
from sluice.trace.rules.rates import rates_of, schedule_steps
from sluice.trace.rules.steps import name_of, optimizers_in, own_steps

_LEAST_SCHEDULE = 3
"""Steps of a schedule after which a warmup is above 0."""
_LEAST, _SURE = 10, 20
"""Steps with a rate of 0."""


def _verdict(scheduled: int, held: int, *, is_alone: bool) -> Severity | None:
    # Of the only optimizer: nothing at all is learned meanwhile.
    is_long = held >= _SURE or (scheduled >= _LEAST_SCHEDULE and held >= _LEAST)
    if is_alone and is_long:
        return "error"
    return "confirm" if held >= _LEAST else None


def _is_alone(trace: Trace, optimizer: int, first: int, until: int) -> bool:
    """Tell whether no other optimizer stepped meanwhile."""
    return not any(
        step.word.first_step < until and step.word.last_step > first
        for other in optimizers_in(trace)
        if other != optimizer
        for step in own_steps(trace, other)
    )


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    stepping = optimizers_in(trace)
    for optimizer in stepping:
        rates = rates_of(trace, optimizer)
        steps = own_steps(trace, optimizer)
        if rates is None or rates.values[0] != 0:
            continue
        first = rates.steps[0]
        left = next((s for s, v in zip(rates.steps, rates.values, strict=True) if v != 0), 0)
        until = left or rates.last + 1
        held = sum(
            min(s.word.count, until - s.word.first_step) for s in steps if s.word.first_step < until
        )
        scheduled = sum(
            schedule_steps(trace, s.index, before=until)
            for s in trace.schedulers
            if s.optimizer == optimizer
        )
        severity = _verdict(scheduled, held, is_alone=_is_alone(trace, optimizer, first, until))
        if severity is None:
            continue
        steered = f", while its schedule was stepped {scheduled} times" if scheduled else ""
        found.append(
            rule.finding(
                severity=severity,
                step=first + 1,
                what=f"{name_of(trace, optimizer)}: the learning rate was exactly 0 in its first "
                f"{held} steps{steered}; {'it never left 0' if not left else 'then it jumped'}.",
                cause="Weights stand still while the rate is 0. A warmup that divides whole "
                "numbers is 0 until its last step.",
                fix="Divide as floats and begin at the first step: min(1.0, (step + 1) / warmup).",
                num_steps=held,
                num_schedule_steps=scheduled,
            )
        )
    return tuple(found)


RATE_ZERO = Rule(
    name="the learning rate leaves 0",
    fault="rate stays zero",
    requirement="TRACE-11",
    requires="Rates of an optimizer whose first is exactly 0 in every group.",
    contradicted_by="An optimizer that is meant to wait.",
    abstains="The rate is above 0 after its first steps.",
    judge=_judge,
)
