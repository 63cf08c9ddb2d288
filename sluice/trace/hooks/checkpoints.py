"""Hooks for ``load_state_dict`` of modules, optimizers and learning-rate schedulers."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LRScheduler

from sluice.trace.hooks.scheduler_records import get_or_add_scheduler
from sluice.trace.inspection.fingerprints import state_fingerprint
from sluice.trace.program_events import WeightsLoaded
from sluice.trace.records.batches import StateLoadRecord
from sluice.trace.tracer_context import TracerContext


def watch_loads(tracer: TracerContext) -> None:
    """Record every ``load_state_dict`` of a module, an optimizer or a scheduler."""
    for cls, role in (
        (torch.nn.Module, "network"),
        (torch.optim.Optimizer, "optimizer"),
        (LRScheduler, "scheduler"),
    ):
        watch_load_state_dict(tracer, cls, role)


def watch_load_state_dict(tracer: TracerContext, cls: type, role: str) -> None:
    """Record calls of the ``load_state_dict`` that a class itself defines, if it defines one."""
    original = vars(cls).get("load_state_dict")
    if original is not None:
        tracer.patches.replace(cls, "load_state_dict", _wrap_load(tracer, original, role))


def _wrap_load(
    tracer: TracerContext, original: Callable[..., Any], role: str
) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_state_dict(owner: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        alias_flags: list[bool] = []
        if tracer.is_on and role == "network":
            tracer.run_safely(_find_aliased_tensors, owner, state_dict, alias_flags)
        result = original(owner, state_dict, *args, **kwargs)
        if tracer.is_on:
            tracer.run_safely(
                _record_load, tracer, owner, role, state_dict, result, sum(alias_flags)
            )
        return result

    return load_state_dict


def _find_aliased_tensors(owner: Any, state: Any, alias_flags: list[bool]) -> None:
    """Append to ``alias_flags`` whether each value of a state dict is an aliased tensor.

    An aliased tensor shares memory with a parameter of the network. The flags are appended to a
    given list, because ``run_safely`` returns nothing.
    """
    if not isinstance(state, Mapping):  # ``load_state_dict`` then raises an error
        return
    addresses = {p.data_ptr() for p in owner.parameters() if _has_address(p) and p.numel()} - {0}
    alias_flags += (
        isinstance(v, Tensor) and _has_address(v) and v.data_ptr() in addresses
        for v in state.values()
    )


def _has_address(tensor: Tensor) -> bool:
    """Return whether a tensor has an address in memory: sparse and lazy tensors have none."""
    return not is_lazy(tensor) and tensor.layout == torch.strided


def _record_load(
    tracer: TracerContext, owner: Any, role: str, state: Any, result: Any, num_aliased: int
) -> None:
    object_id = _get_object_index(tracer, owner, role)
    if role == "network":
        tracer.bus.publish(WeightsLoaded())
    num_unexpected = len(getattr(result, "unexpected_keys", ()))
    num_missing = len(getattr(result, "missing_keys", ()))
    tracer.events.record_event(tracer.local.thread, "load", object_id, flags=(role,))
    record = StateLoadRecord(
        step=tracer.steps.last_step,
        what=role,
        kind=type(owner).__name__,
        object_id=object_id,
        num_keys=len(state),
        num_loaded=len(state) - num_unexpected,
        num_aliased=num_aliased,
        num_missing=num_missing,
        content=state_fingerprint(state) if role == "network" else 0,
    )
    tracer.recorder.write("load", record)


def _get_object_index(tracer: TracerContext, owner: Any, role: str) -> int:
    if role == "optimizer":
        return tracer.objects.optimizers.get_or_add(owner).index
    if role == "scheduler":
        return get_or_add_scheduler(tracer, owner, has_stepped=False).index
    entry = tracer.objects.networks.get(owner)
    return -1 if entry is None else entry.index
