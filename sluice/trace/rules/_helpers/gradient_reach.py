"""Parameters of an optimizer that no gradient reaches."""

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.records.membership import OptimizerRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.measurements import changed_parameters, measurements_of
from sluice.trace.rules._helpers.optimizer_steps import stepping_optimizers


class GradientReachSettings(Settings):
    """Thresholds of the evidence that no gradient reaches a parameter."""

    min_measured_steps: int = Field(
        2,
        ge=1,
        description="A finding about the parameters of an optimizer requires at least this number "
        "of measured steps of the optimizer.",
    )
    min_measured_steps_of_late_optimizer: int = Field(
        5,
        ge=1,
        description="Replaces min_measured_steps for parameters that may have had gradients before "
        "their optimizer made its first step, as in a second phase of training.",
    )


def unreached_parameters(trace: Trace, settings: GradientReachSettings) -> frozenset[int]:
    """Return the trainable parameters that never have a gradient and never change.

    Only parameters of optimizers with at least ``min_measured_steps`` measured steps are included.
    Empty if no parameter of these optimizers has a gradient.
    """
    membership = trace.membership
    if membership is None:
        return frozenset()
    reached_indices = {
        p.index for m in trace.memberships for p in m.parameters if p.has_had_gradient
    }
    optimized_indices: set[int] = set()
    for optimizer in membership.optimizers:
        measurements = measurements_of(trace, optimizer.index)
        reached_indices |= {p for _, statistics in measurements for p in statistics.parameters}
        if (
            optimizer.index in stepping_optimizers(trace)
            and len(measurements) >= settings.min_measured_steps
        ):
            optimized_indices.update(optimizer.parameters)
    # If no gradient reached any parameter, the whole loss is detached, which another rule reports.
    if not reached_indices & optimized_indices:
        return frozenset()
    trainable_indices = {p.index for p in membership.parameters if p.is_trainable and p.names}
    return frozenset(
        (optimized_indices & trainable_indices) - reached_indices - changed_parameters(trace)
    )


def unreached_by_optimizer(
    trace: Trace, optimizer: OptimizerRecord, settings: GradientReachSettings, since_step: int
) -> frozenset[int]:
    """Return the trainable parameters of one optimizer that have no gradient and do not change.

    Empty if no parameter of the optimizer has a gradient, or if fewer than
    ``min_measured_steps_of_late_optimizer`` of its steps were measured.

    Args:
        trace: Trace of one process.
        optimizer: Record of the optimizer.
        settings: Thresholds of the evidence.
        since_step: First step whose parameter values are compared. Gradients at all measured steps
            of the optimizer count.
    """
    membership, measurements = trace.membership, measurements_of(trace, optimizer.index)
    optimized_indices = set(optimizer.parameters)
    reached_indices = {p for _, statistics in measurements for p in statistics.parameters}
    if (
        membership is None
        or len(measurements) < settings.min_measured_steps_of_late_optimizer
        or not reached_indices & optimized_indices
    ):
        return frozenset()
    trainable_indices = {p.index for p in membership.parameters if p.is_trainable and p.names}
    return frozenset(
        (optimized_indices & trainable_indices)
        - reached_indices
        - changed_parameters(trace, since_step)
    )
