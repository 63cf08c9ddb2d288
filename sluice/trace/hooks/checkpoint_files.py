"""Hooks for ``torch.save``, ``torch.load`` and ``state_dict()``."""

import functools
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sluice.trace.fingerprints import state_fingerprint
from sluice.trace.recorder import LogSpacedSampler
from sluice.trace.records.environment import FileReadRecord, StateKind, StateSaveRecord
from sluice.trace.tracer import Tracer

_MAX_DENSE_ROWS = 128
"""Records of each kind that are all kept; later ones are decimated by powers of two."""


def watch_checkpoint_files(tracer: Tracer) -> None:
    """Record states that are saved to files, kept in memory, and read from files."""
    save, load, state_dict = torch.save, torch.load, nn.Module.state_dict
    watch = _CheckpointWatch(tracer)

    @functools.wraps(save)
    def watched_save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        result = save(obj, f, *args, **kwargs)
        if tracer.is_on:
            tracer.run_safely(watch.on_save, obj, f)
        return result

    @functools.wraps(load)
    def watched_load(f: Any, *args: Any, **kwargs: Any) -> Any:
        content = load(f, *args, **kwargs)
        if tracer.is_on:
            tracer.run_safely(watch.on_load, content, f)
        return content

    @functools.wraps(state_dict)
    def watched_state(module: Any, *args: Any, **kwargs: Any) -> Any:
        state = state_dict(module, *args, **kwargs)
        # ``state_dict`` calls itself for every child, with the dictionary that it fills.
        if tracer.is_on and not args and kwargs.get("destination") is None:
            tracer.run_safely(watch.on_state_dict, state)
        return state

    tracer.patches.replace_function(torch, "save", watched_save)
    tracer.patches.replace_function(torch, "load", watched_load)
    tracer.patches.replace(nn.Module, "state_dict", watched_state)
    tracer.on_begin.append(watch.reset)


class _CheckpointWatch:
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.reset()

    def reset(self) -> None:
        """Reset the samplers."""
        names = ("save", "state_dict", "load")
        self._samplers = {name: LogSpacedSampler(_MAX_DENSE_ROWS) for name in names}

    def on_save(self, obj: Any, file: Any) -> None:
        if self._samplers["save"].keeps_next():
            record = StateSaveRecord(
                step=self._step,
                path=_path(file),
                num_keys=_size(obj),
                to="file",
                content=state_fingerprint(_network_in(obj)),
            )
            self._write(record)

    def on_state_dict(self, state: Any) -> None:
        if self._samplers["state_dict"].keeps_next():
            record = StateSaveRecord(
                step=self._step,
                path="",
                num_keys=_size(state),
                to="memory",
                content=state_fingerprint(state),
            )
            self._write(record)

    def on_load(self, content: Any, file: Any) -> None:
        if self._samplers["load"].keeps_next():
            record = FileReadRecord(step=self._step, path=_path(file), states=find_states(content))
            self._tracer.recorder.write("read", record)

    @property
    def _step(self) -> int:
        return self._tracer.steps

    def _write(self, record: StateSaveRecord) -> None:
        self._tracer.recorder.write("save", record)


def find_states(content: Any) -> tuple[StateKind, ...]:
    """Return the kinds of states in a file, at the top or one level deep."""
    if not isinstance(content, Mapping):
        return ()
    kinds = {_kind(item) for item in (content, *list(content.values())[:64])}
    order: tuple[StateKind, ...] = ("network", "optimizer", "scheduler")
    return tuple(kind for kind in order if kind in kinds)


def _network_in(obj: Any) -> Any:
    """Return the state of a network, at the top or one level deep; None if it is absent."""
    items = (obj, *list(obj.values())[:64]) if isinstance(obj, Mapping) else ()
    return next((state for state in items if _kind(state) == "network"), None)


def _kind(state: Any) -> StateKind | None:
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
