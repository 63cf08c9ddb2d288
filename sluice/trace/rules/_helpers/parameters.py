"""Parameters without an optimizer, orphaned parameters, and lists of names for messages."""

from collections.abc import Iterable, Sequence

from sluice.trace.records.membership import (
    Membership,
    MisspelledAttributeRecord,
    OptimizerRecord,
    ParameterRecord,
)
from sluice.trace.records.trace import Trace

_MAX_NAMES = 3
"""Maximum number of names that a message lists."""


def has_manual_gradients(trace: Trace) -> bool:
    """Whether the program calls ``torch.autograd.grad``, and so may set gradients or weights."""
    return any(sequence.find("grad") for sequence in trace.sequences)


def unoptimized_parameters(membership: Membership) -> tuple[ParameterRecord, ...]:
    """Return the networks' trainable parameters that had a gradient but are in no optimizer."""
    optimized = membership.optimized
    return tuple(
        p
        for p in membership.parameters
        if p.names and p.is_trainable and p.has_had_gradient and p.index not in optimized
    )


def first_unoptimized_step(trace: Trace, parameters: Iterable[ParameterRecord]) -> int:
    """Return the first step at which one of the parameters is in a network but in no optimizer."""
    indices = {p.index for p in parameters}
    return next(
        m.step
        for m in trace.memberships
        if {p.index for p in m.parameters if p.names} & indices - m.optimized
    )


def orphaned_parameters(trace: Trace, optimizer: OptimizerRecord) -> tuple[int, ...]:
    """Return the parameters of an optimizer that do not, or no longer, belong to any network.

    A parameter that never belonged to a network is included only if it never had a gradient. If it
    had a gradient, it belongs to an object that is not an nn.Module.
    """
    membership = trace.memberships[-1]
    network_parameters = {p.index for m in trace.memberships for p in m.parameters if p.names}
    orphaned_indices = {
        p.index
        for p in membership.parameters
        if not p.names and (p.index in network_parameters or not p.has_had_gradient)
    }
    return tuple(p for p in optimizer.parameters if p in orphaned_indices)


def first_misspelled_step(trace: Trace, attributes: Iterable[MisspelledAttributeRecord]) -> int:
    """Return the step at which one of the misspelled attributes was first recorded."""
    owners = {attribute.owner for attribute in attributes}
    return next(
        m.step
        for m in trace.memberships
        for n in m.networks
        if owners & {attribute.owner for attribute in n.misspelled_attributes}
    )


def list_names(names: Sequence[str]) -> str:
    """Return the first few names as text, followed by "and N more" for the others."""
    num_more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {num_more} more" if num_more > 0 else "")


def first_names(parameters: Iterable[ParameterRecord]) -> list[str]:
    """Return the first name of each parameter."""
    return [p.names[0] for p in parameters]
