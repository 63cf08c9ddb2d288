"""Hooks for ``torch.save``, ``torch.load`` and ``state_dict()``."""

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sluice.trace.hooks.calls import report_calls
from sluice.trace.inspection.fingerprints import state_fingerprint
from sluice.trace.program_events import TraceBegan
from sluice.trace.recording.log_spaced_sampler import LogSpacedSampler
from sluice.trace.records.environment import FileReadRecord, StateKind, StateSaveRecord
from sluice.trace.sink import EventSink

_NUM_FIRST_CALLS = 128
"""Number of first calls of each function that are all recorded. Of later ones, ever fewer are."""


def watch_checkpoint_files(sink: EventSink) -> None:
    """Record calls of ``torch.save``, ``torch.load`` and ``state_dict()``."""
    watch = _CheckpointWatch(sink)
    report_calls(sink, torch, "save", watch.on_save, everywhere=True)
    report_calls(sink, torch, "load", watch.on_load, everywhere=True)
    report_calls(sink, nn.Module, "state_dict", watch.on_state_dict)


class _CheckpointWatch:
    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._reset()
        sink.bus.subscribe(TraceBegan, lambda _: self._reset())

    def _reset(self) -> None:
        names = ("save", "state_dict", "load")
        self._samplers = {name: LogSpacedSampler(_NUM_FIRST_CALLS) for name in names}

    def on_save(self, _: None, obj: Any, f: Any, *__: Any, **___: Any) -> None:
        if self._samplers["save"].advance():
            record = StateSaveRecord(
                step=self._step,
                path=_path(f),
                num_keys=_num_keys(obj),
                to="file",
                content=state_fingerprint(_network_state(obj)),
            )
            self._write(record)

    def on_state_dict(self, state: Any, _: nn.Module, *args: Any, **kwargs: Any) -> None:
        # ``state_dict`` calls itself for every child, with the dictionary that it fills.
        if args or kwargs.get("destination") is not None:
            return
        if self._samplers["state_dict"].advance():
            record = StateSaveRecord(
                step=self._step,
                path="",
                num_keys=_num_keys(state),
                to="memory",
                content=state_fingerprint(state),
            )
            self._write(record)

    def on_load(self, content: Any, f: Any, *_: Any, **__: Any) -> None:
        if self._samplers["load"].advance():
            record = FileReadRecord(step=self._step, path=_path(f), states=state_kinds(content))
            self._sink.recorder.write("read", record)

    @property
    def _step(self) -> int:
        return self._sink.steps.last

    def _write(self, record: StateSaveRecord) -> None:
        self._sink.recorder.write("save", record)


def state_kinds(content: Any) -> tuple[StateKind, ...]:
    """Return the kinds of state dicts in the content of a file, at the top or one level deep."""
    if not isinstance(content, Mapping):
        return ()
    kinds = {_kind(item) for item in (content, *list(content.values())[:64])}
    order: tuple[StateKind, ...] = ("network", "optimizer", "scheduler")
    return tuple(kind for kind in order if kind in kinds)


def _network_state(obj: Any) -> Any:
    """Return the first state dict of a network, at the top or one level deep; None without one."""
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


def _num_keys(obj: Any) -> int:
    return len(obj) if isinstance(obj, Mapping) else 0
