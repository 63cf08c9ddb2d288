"""Computes statistics of parameter values, and finds non-finite weights and gradients."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sluice.trace.inspection.fingerprints import row_fingerprints
from sluice.trace.inspection.plain_tensors import is_8bit_float
from sluice.trace.objects.gradient_state import nonfinite_positions
from sluice.trace.objects.object_tracker import ObjectTracker, OptimizerEntry
from sluice.trace.recording.device_reads import BatchedDeviceReads
from sluice.trace.records.parameter_values import (
    CorruptedWeightsRecord,
    NonFiniteGradientRecord,
    ParameterValuesRecord,
)

_MAX_PARAMETERS = 256
"""Maximum number of parameters whose values are inspected. The first known parameters are used."""

_FINGERPRINT_SIZE = 4096
"""Maximum number of elements of a parameter from which its fingerprint is computed."""

_MAX_ROWS = 512
"""Maximum number of rows of a parameter, from the first row on, that are compared."""

_ROW_SAMPLE_SIZE = 256
"""Maximum number of elements of a row that are compared."""

_FINGERPRINT_MASK = 2**52 - 1
"""Mask that keeps the lower 52 bits of a fingerprint. Values are read from the device as float64,
which represents integers of 52 bits exactly."""

_NUM_ROUNDING_STEPS = 1e5
"""Number of rounding steps from 0 to the largest absolute value. The differences of each row from
the first row are rounded to these steps. Rows with equal rounded differences count as equal."""


def request_value_statistics(
    objects: ObjectTracker, step: int, device_reads: BatchedDeviceReads
) -> list[list[ParameterValuesRecord]]:
    """Request statistics of the values of all parameters, at most 256.

    The statistics are a fingerprint, the smallest and the largest value, and the numbers of
    distinct rows and of non-finite values.

    Returns:
        One list per parameter. The record of the parameter is appended when its values are read.

    Cost:
        Two passes over the parameters, and one device synchronization per parameter of two or more
        dimensions.
    """
    live_parameters = [(entry.index, p) for entry, p in objects.parameters.live_items()]
    with torch.no_grad():
        return [
            _request_parameter_values(index, parameter, step, device_reads)
            for index, parameter in live_parameters[:_MAX_PARAMETERS]
            if type(parameter) in (Tensor, nn.Parameter)
            and parameter.layout == torch.strided
            and not parameter.is_nested
            and parameter.is_floating_point()
            and not is_8bit_float(parameter)
            and parameter.numel()
            and parameter.device.type != "meta"
            and parameter.untyped_storage().nbytes()  # FSDP frees the storage between passes
        ]


def _request_parameter_values(
    index: int, parameter: Tensor, step: int, device_reads: BatchedDeviceReads
) -> list[ParameterValuesRecord]:
    values = parameter.detach()
    smallest, largest = torch.aminmax(values)
    fingerprint = (
        row_fingerprints(values.reshape(1, -1), sample_size=_FINGERPRINT_SIZE)[0]
        & _FINGERPRINT_MASK
    )
    num_rows = values.shape[0] if values.dim() >= 2 else 0
    num_distinct_rows = _count_distinct_rows(values) if num_rows else 0
    records: list[ParameterValuesRecord] = []

    def on_values(values_read: Sequence[float]) -> None:
        records.append(
            ParameterValuesRecord(
                parameter=index,
                step=step,
                fingerprint=int(values_read[0]),
                smallest=values_read[1],
                largest=values_read[2],
                num_rows=num_rows,
                num_distinct_rows=num_distinct_rows,
                num_non_finite=int(values_read[3]),
            )
        )

    device_reads.request([fingerprint, smallest, largest, (~values.isfinite()).sum()], on_values)
    return records


def _count_distinct_rows(values: Tensor) -> int:
    rows = values[:_MAX_ROWS].reshape(min(len(values), _MAX_ROWS), -1)
    rows = rows[:, :: -(-rows.shape[1] // _ROW_SAMPLE_SIZE)].float()
    scale = rows.abs().max().clamp_min(1e-30)
    rounded = ((rows - rows[0]) / scale * _NUM_ROUNDING_STEPS).round().nan_to_num().to(torch.int32)
    return len(row_fingerprints(rounded, sample_size=_ROW_SAMPLE_SIZE).unique())


def find_corrupted_weights(
    entry: OptimizerEntry, objects: ObjectTracker, step: int, loss: float
) -> NonFiniteGradientRecord | CorruptedWeightsRecord | None:
    """Find the weights of an optimizer that the last step made non-finite.

    Args:
        entry: Optimizer whose weights are checked.
        objects: Assigns indices to the parameters.
        step: Number of the last step.
        loss: Loss of the last step.

    Returns:
        - None if all weights are finite.
        - None if every parameter has non-finite weights, because that does not show the cause.
        - A record of corrupted weights if the optimizer has finite state for the non-finite
          weights, so that gradients were not the cause.
        - Otherwise, a record of non-finite gradients.
    """
    parameters = [p for p in entry.parameters() if p.requires_grad]
    positions = nonfinite_positions([p.detach() for p in parameters])
    if not positions or len(positions) == len(parameters):
        return None
    indices = tuple(objects.parameters.get_or_add(parameters[i]).index for i in positions)
    moments = [moment for i in positions for moment in entry.moments(parameters[i])]
    if moments and not nonfinite_positions(moments):
        return CorruptedWeightsRecord(
            step=step, optimizer=entry.index, parameters=indices, num_parameters=len(parameters)
        )
    return NonFiniteGradientRecord(
        step=step,
        optimizer=entry.index,
        parameters=indices,
        num_gradients=len(parameters),
        loss=loss,
    )


def find_nonfinite_gradients(
    entry: OptimizerEntry, objects: ObjectTracker, step: int, losses: Sequence[Any]
) -> NonFiniteGradientRecord:
    """Return a record of the parameters with non-finite gradients; its list may be empty.

    Args:
        entry: Optimizer whose gradients are checked.
        objects: Assigns indices to the parameters.
        step: Number of the step that is about to be made.
        losses: Losses of the backward passes since the last step.
    """
    parameters = [p for p in entry.parameters() if p.grad is not None]
    positions = nonfinite_positions([p.grad for p in parameters if p.grad is not None])
    return NonFiniteGradientRecord(
        step=step,
        optimizer=entry.index,
        parameters=tuple(objects.parameters.get_or_add(parameters[i]).index for i in positions),
        num_gradients=len(parameters),
        loss=float(losses[-1]) if losses else float("nan"),
    )
