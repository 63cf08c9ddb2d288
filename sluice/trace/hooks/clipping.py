"""Hooks for gradient clipping by norm and by value."""

import functools
import math
import weakref
from collections.abc import Callable
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

from sluice.trace.objects.object_tracker import OptimizerEntry
from sluice.trace.program_events import NonFiniteNorm, TraceBegan
from sluice.trace.thread_state import ThreadState
from sluice.trace.tracer_context import TracerContext

_NUMBER_TYPES = (float, int)
"""Types of a maximum norm. They are a constant, because a union of types in the function would be
created at every call."""

_SCALE_FUNCTION_NAME = "_clip_grads_with_norm_"
"""Function that ``clip_grad_norm_`` calls to scale the gradients, in some versions of torch."""


def watch_clipping(tracer: TracerContext) -> None:
    """Record calls of ``clip_grad_norm_`` and ``clip_grad_value_``."""
    optimizers = _OptimizerLookup(tracer)
    for name, clip_kind in (("clip_grad_norm_", "norm"), ("clip_grad_value_", "value")):
        original = getattr(torch.nn.utils, name)
        clip = _wrap_clip(tracer, optimizers, original, clip_kind)
        tracer.patches.replace_function(torch.nn.utils, name, clip)
    if hasattr(clip_grad, _SCALE_FUNCTION_NAME):
        _watch_scaling(tracer, getattr(clip_grad, _SCALE_FUNCTION_NAME))


def _watch_scaling(tracer: TracerContext, original: Callable[..., Any]) -> None:
    """Read the norm of the gradients before they are scaled; report it if it is non-finite."""
    local = tracer.local

    @functools.wraps(original)
    def scale(parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any) -> None:
        # A norm on another device is not read: reading it would synchronize with the device.
        if type(total_norm) is Tensor and total_norm.is_cpu and tracer.is_on:
            thread = local.thread
            thread.norm_before_clip = norm = total_norm.item()
            if not math.isfinite(norm):
                tracer.run_safely(tracer.bus.publish, NonFiniteNorm(thread))
        original(parameters, max_norm, total_norm, *args, **kwargs)

    tracer.patches.replace(clip_grad, _SCALE_FUNCTION_NAME, scale)


def _wrap_clip(
    tracer: TracerContext,
    optimizers: "_OptimizerLookup",
    original: Callable[..., Any],
    clip_kind: str,
) -> Callable[..., Any]:
    local = tracer.local

    @functools.wraps(original)
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if not tracer.is_on:
            return original(parameters, *args, **kwargs)
        thread = local.thread
        thread.norm_before_clip = None
        if thread.edits.snapshots:
            # Edits are detected before the clip, because they could not be distinguished from it
            # afterwards.
            tracer.run_safely(thread.edits.detect)
        # ``parameters`` may be a generator, which can be read only once.
        tensors = [parameters] if isinstance(parameters, Tensor) else [*parameters]
        clip_argument: Any = tensors
        if not tensors and isinstance(parameters, GeneratorType):
            # An empty generator remains a generator, because torch warns about it, but not about
            # [].
            clip_argument = (p for p in tensors)
        try:
            result = original(clip_argument, *args, **kwargs)
        except RuntimeError:  # usually a non-finite norm with error_if_nonfinite=True
            tracer.run_safely(tracer.bus.publish, NonFiniteNorm(thread))
            raise
        max_norm = args[0] if args else kwargs.get("max_norm")
        try:
            record_clip(thread, tensors, result, max_norm)
        except Exception as error:  # inlines ``run_safely``, to save a call
            tracer.fail(error)
        return result

    def record_clip(thread: ThreadState, tensors: list[Tensor], result: Any, max_norm: Any) -> None:
        entry = optimizers.find(tensors[0]) if tensors else None
        optimizer_index = -1 if entry is None else entry.index
        code = None if entry is None else entry.clip_codes.get(clip_kind)
        if code is None:
            code = tracer.events.code("clip", optimizer_index, flags=(clip_kind,))
            if entry is not None:
                entry.clip_codes[clip_kind] = code
        tracer.events.record(thread, code)
        # With several losses in the step, gradients are accumulated and watched for edits. A new
        # snapshot is taken, so that the clip does not count as an edit.
        if len(thread.step.losses) > 1:
            thread.edits.snapshot(tracer.objects.optimizers.entries)
        if type(result) is Tensor and isinstance(max_norm, _NUMBER_TYPES):
            norm = thread.norm_before_clip
            if norm is None:
                norm = result.item() if result.is_cpu else result.detach()
            elif entry is not None:
                entry.last_norm_read_step = entry.num_steps + 1
            thread.step.clips.append((optimizer_index, norm, float(max_norm)))

    return clip


class _OptimizerLookup:
    """Finds the optimizer of a parameter."""

    def __init__(self, tracer: TracerContext) -> None:
        self._tracer = tracer
        self._entries: dict[int, tuple[weakref.ref[Tensor], OptimizerEntry]] = {}
        """Parameter and optimizer entry of earlier calls, by the id of the parameter."""
        tracer.bus.subscribe(TraceBegan, lambda _: self._entries.clear())

    def find(self, parameter: Tensor) -> OptimizerEntry | None:
        """Return the entry of the first optimizer that has a parameter; None if none has it."""
        cached_pair = self._entries.get(id(parameter))
        if cached_pair is not None:
            ref, entry = cached_pair
            if ref() is parameter and entry.ref() is not None:
                return entry
        for entry, _ in self._tracer.objects.optimizers.live_items():
            if any(p is parameter for p in entry.parameters()):
                self._entries[id(parameter)] = weakref.ref(parameter), entry
                return entry
        return None
