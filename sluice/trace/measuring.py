"""Statistics around one optimizer step: asked for without waiting for the device."""

import resource
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sluice.trace.deferred import Deferred
from sluice.trace.evidence.measures import OptimizerMeasure, OutputMeasure
from sluice.trace.gradients import with_gradient
from sluice.trace.inventory import Inventory, OptimizerEntry

PLAIN = (Tensor, nn.Parameter)
"""Types whose operations have no other meaning, as those of fake or distributed tensors have."""


_NARROW = (torch.bfloat16, torch.float16)


@dataclass(slots=True)
class StepInWork:
    """What was asked for before a step, and what the weights were."""

    parameters: list[Tensor]
    samples: list[Tensor]
    scales: list[float]
    grads: list[Tensor]
    weights: list[Tensor]
    rates: tuple[float, ...]


def begin_step(entry: OptimizerEntry, *, sampled: int) -> StepInWork:
    """Ask for the norms of gradients and weights, and keep a sample of the weights.

    Args:
        entry: The optimizer that is about to step.
        sampled: Numbers kept of a parameter at most.

    Cost:
        One pass over gradients and weights, and a copy of the samples.
    """
    given = [p for p in with_gradient(entry.parameters()) if type(p) in PLAIN]
    with torch.no_grad():
        return StepInWork(
            parameters=given,
            samples=[_sample(p, sampled).clone() for p in given],
            scales=[max(p.numel() / sampled, 1.0) ** 0.5 for p in given],
            grads=_norms([p.grad for p in given if p.grad is not None]),
            weights=_norms([p.detach() for p in given]),
            rates=tuple(float(group.get("lr", 0.0)) for group in entry.groups),
        )


def end_step(
    entry: OptimizerEntry,
    work: StepInWork,
    inventory: Inventory,
    deferred: Deferred,
    *,
    sampled: int,
) -> list[OptimizerMeasure]:
    """Ask for the norms of the change; return a list that holds the measure once that is read."""
    measure: list[OptimizerMeasure] = []
    num = len(work.parameters)
    optimizer = entry.ref()
    with torch.no_grad():
        now = [_sample(p, sampled) for p in work.parameters]
        updates = _norms(torch._foreach_sub(now, work.samples)) if now else []
        moved = _moved(work, now, sampled)
        moments, state_step = _moments(optimizer, work.parameters)
    names = list(moments)

    def fill(values: Sequence[float]) -> None:
        measure.append(
            OptimizerMeasure(
                optimizer=entry.index,
                rates=work.rates,
                parameters=tuple(inventory.parameters.find(p).index for p in work.parameters),
                grad_norms=tuple(values[:num]),
                weight_norms=tuple(values[num : 2 * num]),
                update_norms=tuple(
                    value * scale
                    for value, scale in zip(values[2 * num : 3 * num], work.scales, strict=True)
                ),
                moved_shares=tuple(values[3 * num : 3 * num + len(moved)]),
                moments=dict(zip(names, values[3 * num + len(moved) :], strict=False)),
                state_step=values[-1] if state_step is not None else -1.0,
            )
        )

    last = [] if state_step is None else [state_step]
    asked = [*work.grads, *work.weights, *updates, *moved, *moments.values(), *last]
    deferred.ask(asked, fill)
    return measure


def ask_output(
    network: int, name: str, module: nn.Module, output: Any, deferred: Deferred
) -> list[OutputMeasure]:
    """Ask for the norm of an output; return a list that holds the measure once that is read."""
    measure: list[OutputMeasure] = []
    tensor = first_tensor(output)
    if tensor is None or not tensor.numel() or not tensor.is_floating_point():
        return measure
    with torch.no_grad():
        # Now, as the next module may change it in place.
        values = tensor.detach()
        asked = [
            torch.linalg.vector_norm(values, dtype=_wide(values)),
            torch.count_nonzero(values),
            values.max(),
        ]
    numel, kind = values.numel(), type(module).__name__
    dtype = str(values.dtype).removeprefix("torch.")

    def fill(found: Sequence[float]) -> None:
        measure.append(
            OutputMeasure(
                network=network,
                module=name,
                kind=kind,
                norm=found[0],
                zero_share=1 - found[1] / numel,
                numel=numel,
                largest=found[2],
                dtype=dtype,
            )
        )

    deferred.ask(asked, fill)
    return measure


def first_tensor(output: Any) -> Tensor | None:
    """Return the first plain tensor of what a module returned: alone, or in a container."""
    if isinstance(output, Tensor):
        return output if type(output) in PLAIN and output.layout == torch.strided else None
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, list | tuple):
        for item in output:
            found = first_tensor(item)
            if found is not None:
                return found
    return None


def peak_memory() -> tuple[int, int]:
    """Return the most bytes that the process had, and its tensors on GPUs together."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return most, 0
    devices = range(torch.cuda.device_count())
    return most, sum(torch.cuda.max_memory_allocated(device) for device in devices)


def _sample(parameter: Tensor, most: int) -> Tensor:
    flat = parameter.detach().reshape(-1)
    return flat if flat.numel() <= most else flat[:: -(-flat.numel() // most)]


def _moved(work: StepInWork, now: list[Tensor], sampled: int) -> list[Tensor]:
    """Return the share of numbers with a gradient that moved; nothing for wide types."""
    if not any(p.dtype in _NARROW for p in work.parameters):
        return []
    shares = []
    for parameter, before, after in zip(work.parameters, work.samples, now, strict=True):
        grad = parameter.grad
        if parameter.dtype in _NARROW and grad is not None:
            pulled = _sample(grad, sampled) != 0
            share = ((before != after) & pulled).sum() / pulled.sum()
        else:
            share = torch.full((), float("nan"), device=parameter.device)
        shares.append(share)
    return shares


def _norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    if not tensors:
        return []
    # A sum of squares of half numbers ends at 65,504.
    if any(t.dtype == torch.float16 for t in tensors):
        return [torch.linalg.vector_norm(t, dtype=_wide(t)) for t in tensors]
    return list(torch._foreach_norm(list(tensors)))


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _moments(
    optimizer: Any, parameters: Sequence[Tensor]
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Return the norm of each kind of tensor in the state, and the state's count of steps."""
    groups: dict[str, list[Tensor]] = {}
    state_step: Tensor | None = None
    for parameter in parameters:
        state = optimizer.state.get(parameter, {})
        for name, value in state.items():
            if name == "step":
                state_step = (
                    torch.as_tensor(float(value)) if not isinstance(value, Tensor) else value
                )
            elif type(value) in PLAIN and value.shape == parameter.shape:
                groups.setdefault(name, []).append(value)
    norms = {
        name: torch.linalg.vector_norm(torch.stack([n.float() for n in _norms(tensors)]))
        for name, tensors in groups.items()
        if len({tensor.device for tensor in tensors}) == 1
    }
    return norms, None if state_step is None else state_step.detach().clone().reshape(())
