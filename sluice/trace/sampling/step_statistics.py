"""Statistics of one optimizer step, requested without synchronizing with the device."""

import operator
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from sluice.trace.inspection.plain_tensors import (
    TENSOR_TYPES,
    first_tensor,
    is_8bit_float,
    is_plain_dense,
)
from sluice.trace.objects.gradient_state import parameters_with_dense_gradient
from sluice.trace.objects.object_tracker import ObjectTracker, OptimizerEntry
from sluice.trace.recording.device_reads import BatchedDeviceReads
from sluice.trace.records.step_statistics import OptimizerStatistics, OutputStatistics

_HALF_PRECISION_DTYPES = (torch.bfloat16, torch.float16)


@dataclass(slots=True)
class PendingStatistics:
    """Statistics computed before a step, and samples of the weights."""

    parameters: list[Tensor]
    """Parameters of the optimizer that have a dense gradient."""
    weights_before: list[Tensor]
    """Copy of the sampled elements of each parameter before the step."""
    norm_factors: list[float]
    """For each parameter, the factor by which the norm of a sample is multiplied to estimate the
    norm of the whole tensor."""
    grad_norms: list[Tensor]
    """Norm of the gradient of each parameter."""
    weight_norms: list[Tensor]
    """Norm of each parameter before the step."""
    learning_rates: tuple[float, ...]
    """Learning rate of each parameter group."""


def begin_statistics(entry: OptimizerEntry, *, sample_size: int) -> PendingStatistics:
    """Compute the norms of gradients and weights, and copy a sample of the weights.

    Args:
        entry: Optimizer that is about to make a step.
        sample_size: Maximum number of sampled elements per parameter.

    Cost:
        One pass over gradients and weights, and a copy of the samples.
    """
    parameters = [
        p
        for p in parameters_with_dense_gradient(entry.parameters())
        if is_plain_dense(p)
        and is_plain_dense(p.grad)
        and (p.is_floating_point() or p.is_complex())
        and not is_8bit_float(p)
    ]
    with torch.no_grad():
        samples = [_sample(p, sample_size).clone() for p in parameters]
        return PendingStatistics(
            parameters=parameters,
            weights_before=samples,
            norm_factors=[
                (p.numel() / max(len(sample), 1)) ** 0.5
                for p, sample in zip(parameters, samples, strict=True)
            ],
            grad_norms=_norms([p.grad for p in parameters if p.grad is not None]),
            weight_norms=_norms([p.detach() for p in parameters]),
            learning_rates=tuple(float(group.get("lr", 0.0)) for group in entry.groups),
        )


def end_statistics(
    entry: OptimizerEntry,
    pending: PendingStatistics,
    objects: ObjectTracker,
    device_reads: BatchedDeviceReads,
    *,
    sample_size: int,
) -> list[OptimizerStatistics]:
    """Compute the norms of updates and optimizer state, and request all statistics of the step.

    For half-precision weights, the share of weights that the step changed is computed, too.

    Args:
        entry: Optimizer that made the step.
        pending: Statistics from ``begin_statistics``.
        objects: Assigns indices to the parameters.
        device_reads: Reads the values later.
        sample_size: As in ``begin_statistics``.

    Returns:
        A list to which the statistics are appended when their values are read.
    """
    records: list[OptimizerStatistics] = []
    optimizer = entry.ref()
    with torch.no_grad():
        weights_after = [_sample(p, sample_size) for p in pending.parameters]
        update_norms = (
            _norms(torch._foreach_sub(weights_after, pending.weights_before))
            if weights_after
            else []
        )
        changed_shares = _changed_shares(pending, weights_after, sample_size)
        moments, state_step = _moment_norms(optimizer, pending.parameters)
    moment_names = list(moments)
    num_parameters, num_shares = len(pending.parameters), len(changed_shares)

    def on_values(values: Sequence[float]) -> None:
        remaining_values = iter(values)  # in the order of ``requested_scalars``
        grad_norms, weight_norms, sampled_update_norms = (
            tuple(islice(remaining_values, num_parameters)) for _ in range(3)
        )
        records.append(
            OptimizerStatistics(
                optimizer=entry.index,
                rates=pending.learning_rates,
                parameters=tuple(
                    objects.parameters.get_or_add(p).index for p in pending.parameters
                ),
                grad_norms=grad_norms,
                weight_norms=weight_norms,
                update_norms=tuple(map(operator.mul, sampled_update_norms, pending.norm_factors)),
                changed_shares=tuple(islice(remaining_values, num_shares)),
                moments={name: next(remaining_values) for name in moment_names},
                state_step=next(remaining_values, -1.0),
            )
        )

    requested_scalars = [
        *pending.grad_norms,
        *pending.weight_norms,
        *update_norms,
        *changed_shares,
        *moments.values(),
    ]
    if state_step is not None:
        requested_scalars.append(state_step)
    device_reads.request(requested_scalars, on_values)
    return records


def request_output_statistics(
    network_index: int, name: str, module: nn.Module, output: Any, device_reads: BatchedDeviceReads
) -> list[OutputStatistics]:
    """Request statistics of the first tensor of a module output.

    Args:
        network_index: Index of the network that contains the module.
        name: Name of the module inside the network.
        module: Module that returned the output.
        output: Output of the module.
        device_reads: Reads the values later.

    Returns:
        A list to which the statistics are appended when their values are read. It stays empty if
        the output has no plain tensor, or if its first tensor is empty, not floating-point or of
        8-bit floats.
    """
    records: list[OutputStatistics] = []
    tensor = first_tensor(output)
    if tensor is None or not tensor.numel() or not tensor.is_floating_point():
        return records
    if is_8bit_float(tensor):
        return records
    with torch.no_grad():
        # Computed now, because the next module may change the output in place.
        values = tensor.detach()
        requested_scalars = [
            torch.linalg.vector_norm(values, dtype=_accumulation_dtype(values)),
            torch.count_nonzero(values),
            values.max(),
        ]
    numel, kind = values.numel(), type(module).__name__
    dtype = str(values.dtype).removeprefix("torch.")

    def on_values(values_read: Sequence[float]) -> None:
        records.append(
            OutputStatistics(
                network=network_index,
                module=name,
                kind=kind,
                norm=values_read[0],
                zero_share=1 - values_read[1] / numel,
                numel=numel,
                largest=values_read[2],
                dtype=dtype,
            )
        )

    device_reads.request(requested_scalars, on_values)
    return records


def peak_memory() -> tuple[int, int]:
    """Return the peak memory of the process, and the sum of the peaks of its tensors on each GPU.

    Both are in bytes. The peaks of several GPUs may occur at different times.
    """
    host_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return host_bytes, 0
    devices = range(torch.cuda.device_count())
    return host_bytes, sum(torch.cuda.max_memory_allocated(device) for device in devices)


def _sample(parameter: Tensor, sample_size: int) -> Tensor:
    """Return evenly spaced elements of a parameter, at most ``sample_size``."""
    values = parameter.detach().reshape(-1)
    numel = values.numel()
    return values if numel <= sample_size else values[:: -(-numel // sample_size)]


def _changed_shares(
    pending: PendingStatistics, weights_after: list[Tensor], sample_size: int
) -> list[Tensor]:
    """Return for each parameter the share of sampled elements that the step changed.

    Elements with a gradient of 0 do not count. The share is NaN if no sampled element counts, and
    for parameters without a half-precision dtype. The list is empty if no parameter has a
    half-precision dtype.
    """
    if not any(p.dtype in _HALF_PRECISION_DTYPES for p in pending.parameters):
        return []
    shares = []
    for parameter, before, after in zip(
        pending.parameters, pending.weights_before, weights_after, strict=True
    ):
        grad = parameter.grad
        if parameter.dtype in _HALF_PRECISION_DTYPES and grad is not None:
            has_gradient = _sample(grad, sample_size) != 0
            share = ((before != after) & has_gradient).sum() / has_gradient.sum()
        else:
            share = torch.full((), float("nan"), device=parameter.device)
        shares.append(share)
    return shares


def _norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    if not tensors:
        return []
    # In float16, a sum of squares overflows at 65,504, so norms are accumulated in float32.
    if any(t.dtype == torch.float16 for t in tensors):
        return [torch.linalg.vector_norm(t, dtype=_accumulation_dtype(t)) for t in tensors]
    return list(torch._foreach_norm(list(tensors)))


def _accumulation_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _moment_norms(
    optimizer: Any, parameters: Sequence[Tensor]
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Return the norms of the state tensors by name, such as exp_avg, and the state's step count.

    Each norm covers the state tensors of all parameters. A name whose tensors are on several
    devices is omitted.
    """
    tensors_by_name: dict[str, list[Tensor]] = {}
    state_step: Tensor | None = None
    for parameter in parameters:
        state = optimizer.state.get(parameter, {})
        for name, value in state.items():
            if name == "step":
                state_step = (
                    torch.as_tensor(float(value)) if not isinstance(value, Tensor) else value
                )
            elif type(value) in TENSOR_TYPES and value.shape == parameter.shape:
                tensors_by_name.setdefault(name, []).append(value)
    norms = {
        name: torch.linalg.vector_norm(torch.stack([n.float() for n in _norms(tensors)]))
        for name, tensors in tensors_by_name.items()
        if len({tensor.device for tensor in tensors}) == 1
    }
    return norms, None if state_step is None else state_step.detach().clone().reshape(())
