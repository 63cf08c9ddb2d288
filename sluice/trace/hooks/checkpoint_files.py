"""Hooks for ``torch.save``, ``torch.load`` and ``state_dict()``."""

import os
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sluice.trace.hooks.calls import report_calls
from sluice.trace.inspection.fingerprints import state_fingerprint
from sluice.trace.program_events import TraceBegan
from sluice.trace.recording.log_spaced_sampler import LogSpacedSampler
from sluice.trace.records.environment import FileReadRecord, StateKind, StateSaveRecord
from sluice.trace.tracer_context import TracerContext

_NUM_FIRST_CALLS = 128
"""Number of first calls of each function that are all recorded. Later calls are recorded at growing
intervals."""
_MAX_ITEMS = 64
"""Maximum number of values of a saved dictionary that are searched for state dicts."""


def watch_checkpoint_files(tracer: TracerContext) -> None:
    """Record calls of ``torch.save``, ``torch.load`` and ``state_dict()``."""
    watch = _CheckpointWatch(tracer)
    report_calls(tracer, torch, "save", watch.on_save, in_importing_modules=True)
    report_calls(tracer, torch, "load", watch.on_load, in_importing_modules=True)
    report_calls(tracer, nn.Module, "state_dict", watch.on_state_dict)


class _CheckpointWatch:
    def __init__(self, tracer: TracerContext) -> None:
        self._tracer = tracer
        self._reset()
        tracer.bus.subscribe(TraceBegan, lambda _: self._reset())

    def _reset(self) -> None:
        names = ("save", "state_dict", "load")
        self._samplers = {name: LogSpacedSampler(_NUM_FIRST_CALLS) for name in names}

    def on_save(self, _: None, obj: Any, f: Any, *__: Any, **___: Any) -> None:
        if self._samplers["save"].advance():
            self._write_save(obj, _network_state(obj), to="file", path=_file_path(f))

    def on_state_dict(self, state: Any, _: nn.Module, *args: Any, **kwargs: Any) -> None:
        # Not recorded: the calls of ``state_dict`` for child modules, which fill a given
        # dictionary.
        if args or kwargs.get("destination") is not None:
            return
        if self._samplers["state_dict"].advance():
            self._write_save(state, state, to="memory", path="")

    def on_load(self, content: Any, f: Any, *_: Any, **__: Any) -> None:
        if self._samplers["load"].advance():
            step, states = self._tracer.steps.last_step, state_kinds(content)
            record = FileReadRecord(step=step, path=_file_path(f), states=states)
            self._tracer.recorder.write("read", record)

    def _write_save(
        self, obj: Any, network_state: Any, *, to: Literal["file", "memory"], path: str
    ) -> None:
        record = StateSaveRecord(
            step=self._tracer.steps.last_step,
            path=path,
            num_keys=len(obj) if isinstance(obj, Mapping) else 0,
            to=to,
            content=state_fingerprint(network_state),
        )
        self._tracer.recorder.write("save", record)


def state_kinds(content: Any) -> tuple[StateKind, ...]:
    """Return the kinds of state dicts in the content of a file, at the top or one level deep."""
    if not isinstance(content, Mapping):
        return ()
    kinds = {_state_kind(item) for item in (content, *list(content.values())[:_MAX_ITEMS])}
    order: tuple[StateKind, ...] = ("network", "optimizer", "scheduler")
    return tuple(kind for kind in order if kind in kinds)


def _network_state(obj: Any) -> Any:
    """Return the first state dict of a network, at the top or one level deep; None if absent."""
    items = (obj, *list(obj.values())[:_MAX_ITEMS]) if isinstance(obj, Mapping) else ()
    return next((state for state in items if _state_kind(state) == "network"), None)


def _state_kind(state: Any) -> StateKind | None:
    if not isinstance(state, Mapping) or not state:
        return None
    if {"state", "param_groups"} <= set(state):
        return "optimizer"
    if "last_epoch" in state:
        return "scheduler"
    return "network" if all(isinstance(value, Tensor) for value in state.values()) else None


def _file_path(file: Any) -> str:
    """Return the path of ``file``, a path or an open file; '' if the path is unknown."""
    if isinstance(file, str | os.PathLike):
        return os.fsdecode(file)
    name = getattr(file, "name", "")
    return name if isinstance(name, str) else ""
