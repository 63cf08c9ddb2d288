"""States that are kept and read: ``torch.save``, ``torch.load``, ``state_dict()``."""

import functools
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sluice.trace.evidence.surroundings import ReadFact, SaveFact, State
from sluice.trace.fingerprints import state_fingerprint
from sluice.trace.recorder import Thin
from sluice.trace.tracer import Tracer

_ROWS = 128
"""Facts of each kind before every second one is left out, then three of four, and so on."""


def watch_saves(tracer: Tracer) -> None:
    """Record what is saved to files, kept in memory and read from files."""
    save, load, state_dict = torch.save, torch.load, nn.Module.state_dict
    seen = _Saving(tracer)

    @functools.wraps(save)
    def watched_save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        found = save(obj, f, *args, **kwargs)
        if tracer.is_on:
            tracer.guard(seen.saved, obj, f)
        return found

    @functools.wraps(load)
    def watched_load(f: Any, *args: Any, **kwargs: Any) -> Any:
        found = load(f, *args, **kwargs)
        if tracer.is_on:
            tracer.guard(seen.read, found, f)
        return found

    @functools.wraps(state_dict)
    def watched_state(module: Any, *args: Any, **kwargs: Any) -> Any:
        found = state_dict(module, *args, **kwargs)
        # It calls itself for every child, with the dictionary that it fills.
        if tracer.is_on and not args and kwargs.get("destination") is None:
            tracer.guard(seen.kept, found)
        return found

    tracer.patches.replace_function(torch, "save", watched_save)
    tracer.patches.replace_function(torch, "load", watched_load)
    tracer.patches.replace(nn.Module, "state_dict", watched_state)
    tracer.on_begin.append(seen.reset)


class _Saving:
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.reset()

    def reset(self) -> None:
        """Begin the counts anew."""
        self._thin = {name: Thin(_ROWS) for name in ("saved", "kept", "read")}

    def saved(self, obj: Any, file: Any) -> None:
        if self._thin["saved"].takes_next():
            fact = SaveFact(
                step=self._step,
                path=_path(file),
                num_keys=_size(obj),
                to="file",
                content=state_fingerprint(_network_in(obj)),
            )
            self._write(fact)

    def kept(self, state: Any) -> None:
        if self._thin["kept"].takes_next():
            fact = SaveFact(
                step=self._step,
                path="",
                num_keys=_size(state),
                to="memory",
                content=state_fingerprint(state),
            )
            self._write(fact)

    def read(self, found: Any, file: Any) -> None:
        if self._thin["read"].takes_next():
            fact = ReadFact(step=self._step, path=_path(file), states=states_in(found))
            self._tracer.recorder.write("read", fact)

    @property
    def _step(self) -> int:
        return self._tracer.steps

    def _write(self, fact: SaveFact) -> None:
        self._tracer.recorder.write("save", fact)


def states_in(found: Any) -> tuple[State, ...]:
    """Return what states a file holds: at the top, or one level deep."""
    if not isinstance(found, Mapping):
        return ()
    kinds = {_kind(held) for held in (found, *list(found.values())[:64])}
    order: tuple[State, ...] = ("network", "optimizer", "scheduler")
    return tuple(kind for kind in order if kind in kinds)


def _network_in(obj: Any) -> Any:
    """Return the state of a network, at the top or one level deep; None when there is none."""
    held = (obj, *list(obj.values())[:64]) if isinstance(obj, Mapping) else ()
    return next((state for state in held if _kind(state) == "network"), None)


def _kind(state: Any) -> State | None:
    if not isinstance(state, Mapping) or not state:
        return None
    if {"state", "param_groups"} <= set(state):
        return "optimizer"
    if "last_epoch" in state:
        return "scheduler"
    return "network" if all(isinstance(value, Tensor) for value in state.values()) else None


def _path(file: Any) -> str:
    if isinstance(file, str | os.PathLike):
        return os.fsdecode(file)
    name = getattr(file, "name", "")
    return name if isinstance(name, str) else ""


def _size(obj: Any) -> int:
    return len(obj) if isinstance(obj, Mapping) else 0
