"""What rules of membership share: who has a gradient and no optimizer, and how to list it."""

from collections.abc import Iterable, Sequence

from sluice.trace.evidence.membership import (
    Membership,
    MisnamedFact,
    OptimizerFact,
    ParameterFact,
)
from sluice.trace.evidence.trace import Trace

_SHOWN = 3


def has_manual_gradients(trace: Trace) -> bool:
    """Tell whether the program sets gradients or weights by hand."""
    return any(word.find("grad") for word in trace.words)


def untrained(membership: Membership) -> tuple[ParameterFact, ...]:
    """Return the trainable parameters of networks that get gradients and are in no optimizer."""
    optimized = membership.optimized
    return tuple(
        p
        for p in membership.parameters
        if p.names and p.is_trainable and p.has_had_gradient and p.index not in optimized
    )


def orphans(trace: Trace, optimizer: OptimizerFact) -> tuple[int, ...]:
    """Return the parameters of an optimizer that no network has, or none has any more.

    Of those that no network ever had only such as no gradient ever reached: others belong to
    something that is no network.
    """
    now = trace.memberships[-1]
    once = {p.index for m in trace.memberships for p in m.parameters if p.names}
    lost = {
        p.index
        for p in now.parameters
        if not p.names and (p.index in once or not p.has_had_gradient)
    }
    return tuple(p for group in optimizer.groups for p in group.parameters if p in lost)


def since_named(trace: Trace, misnamed: Iterable[MisnamedFact]) -> int:
    """Return the step at which one of these attributes was seen first."""
    owners = {m.owner for m in misnamed}
    return next(
        m.step
        for m in trace.memberships
        for n in m.networks
        if owners & {told.owner for told in n.misnamed}
    )


def listing(names: Sequence[str]) -> str:
    """Return the first few names and how many more there are."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def names_of(parameters: Iterable[ParameterFact]) -> list[str]:
    """Return the first name of each."""
    return [p.names[0] for p in parameters]
