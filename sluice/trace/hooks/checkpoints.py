"""Hooks for ``load_state_dict`` of modules, optimizers and learning-rate schedulers."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from sluice.trace.fingerprints import state_fingerprint
from sluice.trace.records.batches import StateLoadRecord
from sluice.trace.tracer import Tracer


def watch_loads(tracer: Tracer) -> None:
    """Record every ``load_state_dict`` of a module, an optimizer or a scheduler."""
    for cls, what in (
        (torch.nn.Module, "network"),
        (torch.optim.Optimizer, "optimizer"),
        (LRScheduler, "scheduler"),
    ):
        watch_load(tracer, cls, what)


def watch_load(tracer: Tracer, cls: type, what: str) -> None:
    """Record calls of the ``load_state_dict`` that a class itself defines, if it defines one."""
    original = vars(cls).get("load_state_dict")
    if original is not None:
        tracer.patches.replace(cls, "load_state_dict", _watched(tracer, original, what))


def _watched(tracer: Tracer, original: Callable[..., Any], what: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_state_dict(owner: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        aliased: list[int] = []
        if tracer.is_on and what == "network":
            tracer.run_safely(_find_aliased_tensors, owner, state_dict, aliased)
        result = original(owner, state_dict, *args, **kwargs)
        if tracer.is_on:
            tracer.run_safely(_loaded, tracer, owner, what, state_dict, result, sum(aliased))
        return result

    return load_state_dict


def _find_aliased_tensors(owner: Any, state: Any, aliased: list[int]) -> None:
    """Append for each tensor of a state whether it shares memory with the network's parameters."""
    addresses = {p.data_ptr() for p in owner.parameters() if p.numel()} - {0}
    aliased += (isinstance(v, Tensor) and v.data_ptr() in addresses for v in state.values())


def _loaded(
    tracer: Tracer, owner: Any, what: str, state: Any, result: Any, num_aliased: int
) -> None:
    object_id = _object_index(tracer, owner, what)
    if what == "network" and tracer.losses is not None:  # later evaluations use other weights
        tracer.losses.close_evaluations()
    unexpected = len(getattr(result, "unexpected_keys", ()))
    missing = len(getattr(result, "missing_keys", ()))
    tracer.record_event(tracer.local.thread, "load", object_id, flags=(what,))
    record = StateLoadRecord(
        step=tracer.steps,
        what=what,
        kind=type(owner).__name__,
        object_id=object_id,
        num_keys=len(state),
        num_loaded=len(state) - unexpected,
        num_aliased=num_aliased,
        num_missing=missing,
        content=state_fingerprint(state) if what == "network" else 0,
    )
    tracer.recorder.write("load", record)


def _object_index(tracer: Tracer, owner: Any, what: str) -> int:
    if what == "optimizer":
        return tracer.objects.optimizers.get_or_add(owner).index
    if what == "scheduler":
        return tracer.schedulers.get_or_add(owner).index
    entry = tracer.objects.networks.get(owner)
    return -1 if entry is None else entry.index
