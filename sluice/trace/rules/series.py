"""What rules of numbers share: the measures of one optimizer, losses, and values over time."""

from collections.abc import Iterator

from sluice.trace.evidence.measures import OptimizerMeasure
from sluice.trace.evidence.membership import ParameterFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.evidence.values import ValueFact


def measures_of(trace: Trace, optimizer: int) -> tuple[tuple[int, OptimizerMeasure], ...]:
    """Return the measured steps of an optimizer, with their numbers."""
    return tuple(
        (m.step, own) for m in trace.measures for own in m.optimizers if own.optimizer == optimizer
    )


def facts_of(trace: Trace) -> dict[int, ParameterFact]:
    """Return what was last known of each parameter, by its index."""
    return {p.index: p for m in trace.memberships for p in m.parameters}


def names_in(trace: Trace) -> dict[int, str]:
    """Return what to call each parameter."""
    facts = facts_of(trace)
    return {i: p.names[0] if p.names else f"parameter {i}" for i, p in facts.items()}


def losses_of(trace: Trace) -> tuple[tuple[int, float], ...]:
    """Return the first loss of each step that is known; none under a gradient scaler."""
    if any(n.scale is not None for n in trace.numbers):
        return ()
    return tuple((n.step, n.losses[0]) for n in trace.numbers if n.losses)


def values_by_parameter(trace: Trace) -> dict[int, tuple[ValueFact, ...]]:
    """Return what was seen in each parameter, in the order of steps."""
    found: dict[int, list[ValueFact]] = {}
    for value in trace.values:
        found.setdefault(value.parameter, []).append(value)
    return {index: tuple(facts) for index, facts in found.items()}


def moved(trace: Trace, since: int = 0) -> frozenset[int]:
    """Return the parameters whose numbers changed from the first look to any later one.

    Args:
        trace: Of one process.
        since: Looks before that step do not count.
    """
    seen: dict[int, set[int]] = {}
    for value in trace.values:
        if value.step >= since:
            seen.setdefault(value.parameter, set()).add(value.fingerprint)
    return frozenset(index for index, states in seen.items() if len(states) > 1)


def weights_of(trace: Trace, own: OptimizerMeasure) -> Iterator[int]:
    """Yield the places in a measure of parameters with two dimensions or more."""
    facts = facts_of(trace)
    for place, index in enumerate(own.parameters):
        if index in facts and len(facts[index].shape) >= 2:
            yield place
