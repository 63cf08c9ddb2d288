"""Trained networks, and the forward passes used for training or for evaluation."""

from sluice.trace.records.events import StepSequence, TraceEvent
from sluice.trace.records.membership import NetworkRecord
from sluice.trace.records.trace import Trace


def trained_networks(trace: Trace) -> tuple[NetworkRecord, ...]:
    """Return the networks with a parameter in an optimizer."""
    membership = trace.membership
    if membership is None:
        return ()
    return tuple(n for n in membership.networks if set(n.parameters) & membership.optimized)


def forward_events(sequence: StepSequence, network: int) -> tuple[tuple[int, TraceEvent], ...]:
    """Return the forward passes of a network in a step sequence, with their positions."""
    events = enumerate(sequence.events)
    return tuple((i, m) for i, m in events if m.kind == "forward" and m.object_id == network)


def learning_forwards(sequence: StepSequence, network: int) -> tuple[TraceEvent, ...]:
    """Return the forward passes whose gradients are used by the step that ends a sequence.

    A backward pass must follow the forward pass, and its gradients must not be cleared before the
    step (as after computing the Fisher information). If some of the passes ran in training mode,
    those in evaluation mode are an evaluation without ``no_grad`` and are left out.
    """
    end = sequence.final_event
    if end is None or end.kind != "step":
        return ()
    backward = sequence.find("backward")
    cleared = max(
        (i for i in sequence.find("zero") if sequence.events[i].object_id in (end.object_id, -1)),
        default=-1,
    )
    after = {
        i: next((b for b in backward if b > i), -1) for i, _ in forward_events(sequence, network)
    }
    forwards = [
        m for i, m in forward_events(sequence, network) if after[i] > cleared and "grad" in m.flags
    ]
    training = [event for event in forwards if "training" in event.flags]
    return tuple(training or forwards)
