"""States that are loaded into networks, optimizers and schedulers."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from sluice.trace.evidence.batches import LoadFact
from sluice.trace.fingerprints import state_fingerprint
from sluice.trace.tracer import Tracer


def watch_loads(tracer: Tracer) -> None:
    """Mark every ``load_state_dict`` of a module, an optimizer or a scheduler."""
    for cls, what in (
        (torch.nn.Module, "network"),
        (torch.optim.Optimizer, "optimizer"),
        (LRScheduler, "scheduler"),
    ):
        watch_load(tracer, cls, what)


def watch_load(tracer: Tracer, cls: type, what: str) -> None:
    """Mark the ``load_state_dict`` that a class has of its own, if it has one."""
    original = vars(cls).get("load_state_dict")
    if original is not None:
        tracer.patches.replace(cls, "load_state_dict", _watched(tracer, original, what))


def _watched(tracer: Tracer, original: Callable[..., Any], what: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_state_dict(owner: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        own: list[int] = []
        if tracer.is_on and what == "network":
            tracer.guard(_count_own, owner, state_dict, own)
        found = original(owner, state_dict, *args, **kwargs)
        if tracer.is_on:
            tracer.guard(_loaded, tracer, owner, what, state_dict, found, sum(own))
        return found

    return load_state_dict


def _count_own(owner: Any, state: Any, own: list[int]) -> None:
    """Note for each tensor of a state whether it is in the memory of the network's own."""
    places = {p.data_ptr() for p in owner.parameters() if p.numel()} - {0}
    own += (isinstance(v, Tensor) and v.data_ptr() in places for v in state.values())


def _loaded(tracer: Tracer, owner: Any, what: str, state: Any, found: Any, num_own: int) -> None:
    subject = _subject(tracer, owner, what)
    if what == "network" and tracer.losses is not None:  # what is evaluated next is another one
        tracer.losses.close_passes()
    unexpected = len(getattr(found, "unexpected_keys", ()))
    missing = len(getattr(found, "missing_keys", ()))
    tracer.mark(tracer.local.lane, "load", subject, flags=(what,))
    fact = LoadFact(
        step=tracer.steps,
        what=what,
        kind=type(owner).__name__,
        subject=subject,
        num_keys=len(state),
        num_loaded=len(state) - unexpected,
        num_own=num_own,
        num_missing=missing,
        content=state_fingerprint(state) if what == "network" else 0,
    )
    tracer.recorder.write("load", fact)


def _subject(tracer: Tracer, owner: Any, what: str) -> int:
    if what == "optimizer":
        return tracer.inventory.optimizers.find(owner).index
    if what == "scheduler":
        return tracer.schedulers.find(owner).index
    entry = tracer.inventory.networks.known(owner)
    return -1 if entry is None else entry.index
