"""Measured steps of one optimizer, losses by step, and parameter values over time."""

from collections.abc import Iterator

from sluice.trace.records.membership import ParameterRecord
from sluice.trace.records.parameter_values import ParameterValuesRecord
from sluice.trace.records.step_statistics import OptimizerStatistics
from sluice.trace.records.trace import Trace


def measurements_of(trace: Trace, optimizer: int) -> tuple[tuple[int, OptimizerStatistics], ...]:
    """Return the measured steps of an optimizer as (step, statistics).

    A step is measured if the trace contains its statistics, which exist only for sampled steps.
    """
    return tuple(
        (record.step, statistics)
        for record in trace.statistics
        for statistics in record.optimizers
        if statistics.optimizer == optimizer
    )


def parameter_records(trace: Trace) -> dict[int, ParameterRecord]:
    """Return the latest record of each parameter, by parameter index."""
    return {p.index: p for m in trace.memberships for p in m.parameters}


def parameter_names(trace: Trace) -> dict[int, str]:
    """Return the display name of each parameter, by parameter index."""
    records = parameter_records(trace)
    return {i: p.names[0] if p.names else f"parameter {i}" for i, p in records.items()}


def step_losses(trace: Trace) -> tuple[tuple[int, float], ...]:
    """Return the first recorded loss of each step as (step, loss).

    Empty if a gradient scaler was used, because it scales the recorded losses.
    """
    if any(n.scale is not None for n in trace.scalars):
        return ()
    return tuple((n.step, n.losses[0]) for n in trace.scalars if n.losses)


def values_by_parameter(trace: Trace) -> dict[int, tuple[ParameterValuesRecord, ...]]:
    """Return the sampled values of each parameter, in the order of steps."""
    values: dict[int, list[ParameterValuesRecord]] = {}
    for record in trace.parameter_values:
        values.setdefault(record.parameter, []).append(record)
    return {index: tuple(records) for index, records in values.items()}


def changed_parameters(trace: Trace, since_step: int = 0) -> frozenset[int]:
    """Return the parameters whose values differ between any two samples.

    Args:
        trace: Trace of one process.
        since_step: First step whose samples count.
    """
    fingerprints: dict[int, set[int]] = {}
    for record in trace.parameter_values:
        if record.step >= since_step:
            fingerprints.setdefault(record.parameter, set()).add(record.fingerprint)
    return frozenset(
        index
        for index, distinct_fingerprints in fingerprints.items()
        if len(distinct_fingerprints) > 1
    )


def weight_positions(trace: Trace, statistics: OptimizerStatistics) -> Iterator[int]:
    """Yield the positions in ``statistics.parameters`` of parameters with at least two dimensions.

    Biases and the parameters of normalization layers are thus left out.
    """
    records = parameter_records(trace)
    for position, index in enumerate(statistics.parameters):
        if index in records and len(records[index].shape) >= 2:
            yield position
