"""Trained networks and their forward passes."""

from sluice.trace.records.events import StepSequence, TraceEvent
from sluice.trace.records.membership import NetworkRecord
from sluice.trace.records.trace import Trace


def trained_networks(trace: Trace) -> tuple[NetworkRecord, ...]:
    """Return the networks of which an optimizer contains at least one parameter."""
    membership = trace.membership
    if membership is None:
        return ()
    return tuple(n for n in membership.networks if set(n.parameters) & membership.optimized)


def forward_events(sequence: StepSequence, network: int) -> tuple[tuple[int, TraceEvent], ...]:
    """Return the forward passes of a network in a step sequence, with their positions."""
    return tuple(
        (i, event)
        for i, event in enumerate(sequence.events)
        if event.kind == "forward" and event.object_id == network
    )


def training_forwards(sequence: StepSequence, network: int) -> tuple[TraceEvent, ...]:
    """Return a network's forward passes whose gradients are used by the step that ends a sequence.

    A backward pass must follow the forward pass, and its gradients must not be cleared before the
    step. (A program clears gradients that it computes only for the Fisher information, for
    example.) If some of these forward passes ran in training mode, the passes in evaluation mode
    are left out: they are an evaluation without ``no_grad``. () if no optimizer made a step.
    """
    step_event = sequence.final_event
    if step_event is None or step_event.kind != "step":
        return ()
    backward_positions = sequence.find("backward")
    last_zero_grad = max(
        (
            i
            for i in sequence.find("zero")
            if sequence.events[i].object_id in (step_event.object_id, -1)
        ),
        default=-1,
    )
    forwards = [
        event
        for i, event in forward_events(sequence, network)
        if "grad" in event.flags
        and next((position for position in backward_positions if position > i), -1) > last_zero_grad
    ]
    train_mode_forwards = [event for event in forwards if "training" in event.flags]
    return tuple(train_mode_forwards or forwards)
