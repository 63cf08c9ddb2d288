"""Does a schedule last as long as the training?"""

from dataclasses import dataclass

from sluice.trace.evidence.trace import SchedulerFact, Trace
from sluice.trace.finding import Finding, Rule, Severity
from sluice.trace.rules.loaders import num_epochs
from sluice.trace.rules.rates import Rates, first_schedule_step, rates_of, schedule_steps
from sluice.trace.rules.steps import optimizers_in, own_steps, total

_PERIODIC = frozenset(
    {"OneCycleLR", "CyclicLR", "CosineAnnealingWarmRestarts", "ReduceLROnPlateau", "ConstantLR"}
)
"""Made for a step with each batch, or led by the loss."""
_LEAST_STEPS = 20
_LEAST_BY_HAND = 60
_LEAST_BATCHES = 3
"""In an epoch."""
_LOW = 0.01
"""Of the largest rate: so little that weights stand still against what came before."""
_MOST_LOW, _MUCH_LOW = 0.8, 0.6
"""Share of all steps."""
_FLOOR = 0.05
"""Of the largest rate: where a schedule that has an end leaves it."""
_MANY, _SHORT = 4, 64
"""Times that a cosine of at most so many steps came to its end."""
_STEEP, _SMALL = 0.98, 0.02
"""Factor of each batch, which halves the rate every 34 of them, and what is left at the end."""


@dataclass(frozen=True, slots=True)
class _Seen:
    fact: SchedulerFact
    steps: int
    """Of the schedule."""
    epochs: int
    """0 when they are not known."""
    rates: Rates


def _verdict(seen: _Seen) -> tuple[Severity, str] | None:
    """Return how sure it is that the schedule is over too early, and what shows it."""
    fact, rates, kind = seen.fact, seen.rates, seen.fact.kind
    low = rates.share_fallen(_LOW)
    by_epochs = seen.epochs >= 2 and seen.steps >= _LEAST_BATCHES * seen.epochs
    # What rises to its end is a warmup.
    first = rates.steps[0]
    falls = bool(fact.end) and rates.at(first + fact.end) < 0.5 * max(
        rates.at(first + i) for i in range(min(fact.end, 64) + 1)
    )
    told = f"it was made for {fact.end} steps of its own and was given {seen.steps}"
    if by_epochs and falls and fact.end <= seen.epochs and seen.steps >= 2 * fact.end:
        return "error", f"{told}, one with each batch of {seen.epochs} epochs"
    if kind == "CosineAnnealingLR" and falls and seen.steps >= _MANY * fact.end:
        is_short = not seen.epochs and fact.end <= _SHORT
        return "error" if is_short else "confirm", told
    size = fact.options.get("step_size", 0)
    is_of_epochs = isinstance(size, int) and by_epochs and 0 < size <= seen.epochs
    if is_of_epochs and rates.share_fallen(0.1) >= 0.5:
        return "error", f"it falls every {size} of its own steps, in {seen.epochs} epochs"
    gamma = fact.options.get("gamma")
    is_steep = kind == "ExponentialLR" and isinstance(gamma, float) and gamma <= _STEEP
    if is_steep and by_epochs and rates.values[-1] <= _SMALL * rates.peak:
        return "error", f"it falls by the factor {gamma} with each batch of {seen.epochs} epochs"
    floor, falling = rates.values[-1] / rates.peak, rates.steps[-1] - rates.steps[0]
    if low < _MUCH_LOW and floor <= _FLOOR and falling <= (1 - _MOST_LOW) * seen.steps:
        return "error", f"since step {rates.steps[-1]} the rate is {floor:.0%} of its largest"
    if low < _MUCH_LOW:
        return None
    share = f"in {low:.0%} of all steps the rate was at most a hundredth of its largest"
    return "error" if low >= _MOST_LOW else "confirm", share


def _by_hand(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    """Tell of rates that fall to nothing, though no scheduler has the optimizer."""
    led = {fact.optimizer for fact in trace.schedulers}
    found = []
    for optimizer in optimizers_in(trace):
        rates, of = rates_of(trace, optimizer), total(own_steps(trace, optimizer))
        if optimizer in led or rates is None or rates.peak <= 0 or of < _LEAST_BY_HAND:
            continue
        low = rates.share_fallen(_LOW)
        if low < _MUCH_LOW:
            continue
        at = rates.steps[rates.values.index(rates.peak)]
        found.append(
            rule.finding(
                severity="error" if low >= _MOST_LOW else "confirm",
                step=next(
                    s
                    for s, v in zip(rates.steps, rates.values, strict=True)
                    if s > at and v < rates.peak
                ),
                what=f"The rate of an optimizer that no scheduler leads fell from {rates.peak:.3g} "
                f"to {rates.values[-1]:.3g}; in {low:.0%} of its {of} steps it was at most a "
                "hundredth of its largest.",
                cause="What lowers the rate runs with every batch, and was made to run with every "
                "epoch: weights stand still long before the end.",
                fix="Lower the rate once after each epoch, or by a factor nearer to 1.",
                num_steps=of,
                share_low=low,
            )
        )
    return tuple(found)


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = [*_by_hand(rule, trace)]
    for fact in trace.schedulers:
        steps = schedule_steps(trace, fact.index)
        of = total(own_steps(trace, fact.optimizer))
        rates = rates_of(trace, fact.optimizer)
        with_each_step = of >= _LEAST_STEPS and steps >= 0.8 * (of - 1)
        if fact.kind in _PERIODIC or not with_each_step or rates is None or rates.peak <= 0:
            continue
        verdict = _verdict(_Seen(fact, steps, num_epochs(trace), rates))
        if verdict is None:
            continue
        severity, shown = verdict
        found.append(
            rule.finding(
                severity=severity,
                step=first_schedule_step(trace, fact.index),
                what=f"{fact.kind} was stepped {steps} times in {of} steps of its optimizer: "
                f"{shown}. The rate went from {rates.peak:.3g} to {rates.values[-1]:.3g}.",
                cause="A schedule that counts epochs is told of every batch: the rate reaches its "
                "end in the first of them.",
                fix="Call scheduler.step() once after each epoch, or give the schedule its length "
                "in batches.",
                num_schedule_steps=steps,
                num_steps=of,
                end=fact.end,
            )
        )
    return tuple(found)


SCHEDULE_EARLY = Rule(
    name="a schedule lasts as long as the training",
    fault="schedule ends early",
    requirement="TRACE-11",
    requires="A scheduler that is stepped with each of at least 20 steps, or none and 60 steps; "
    "and the rates.",
    contradicted_by="Epochs with as many batches as the schedule has steps.",
    abstains="The schedule is made for batches (OneCycleLR, warm restarts) or led by the loss, or "
    "is a warmup.",
    judge=_judge,
)
