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

from sluice.trace.hooks.gradient_edits import detect_gradient_edit, snapshot_gradients
from sluice.trace.object_tracker import OptimizerEntry
from sluice.trace.tracer import Tracer

_NUMBERS = (float, int)
"""A module constant: a union of types would be created at every call."""

_SCALE_FUNCTION = "_clip_grads_with_norm_"
"""Function that ``clip_grad_norm_`` calls with the norm; exists in some versions of torch."""


def watch_clipping(tracer: Tracer) -> None:
    """Record calls of ``clip_grad_norm_`` and ``clip_grad_value_``."""
    optimizers = _OptimizerLookup(tracer)
    for name, flag in (("clip_grad_norm_", "norm"), ("clip_grad_value_", "value")):
        original = getattr(torch.nn.utils, name)
        new = _watched(tracer, optimizers, original, flag)
        tracer.patches.replace_function(torch.nn.utils, name, new)
    if hasattr(clip_grad, _SCALE_FUNCTION):
        _watch_scaling(tracer, getattr(clip_grad, _SCALE_FUNCTION))


def _watch_scaling(tracer: Tracer, original: Callable[..., Any]) -> None:
    """Check gradients with a non-finite norm before clipping turns all of them into NaN."""
    local = tracer.local

    @functools.wraps(original)
    def scale(parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any) -> None:
        # Reading a value from another device would synchronize with it.
        if type(total_norm) is Tensor and total_norm.is_cpu and tracer.is_on:
            thread = local.thread
            thread.grad_norm = norm = total_norm.item()
            if not math.isfinite(norm):
                if thread.position >= 0:
                    tracer.run_safely(tracer.fast_path.stop, thread)
                tracer.run_safely(tracer.gradient_checks.before_clip, thread)
        original(parameters, max_norm, total_norm, *args, **kwargs)

    tracer.patches.replace(clip_grad, _SCALE_FUNCTION, scale)


def _watched(
    tracer: Tracer, optimizers: "_OptimizerLookup", original: Callable[..., Any], flag: str
) -> Callable[..., Any]:
    local = tracer.local

    @functools.wraps(original)
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if not tracer.is_on:
            return original(parameters, *args, **kwargs)
        thread = local.thread
        thread.grad_norm = None
        if thread.gradient_snapshots:
            tracer.run_safely(detect_gradient_edit, thread)
        if thread.position >= 0:
            if thread.expected_codes[thread.position] == thread.optimizer_entry.clip_codes.get(
                flag
            ):
                try:
                    norm = original(parameters, *args, **kwargs)
                except RuntimeError:
                    tracer.run_safely(tracer.fast_path.stop, thread)
                    tracer.run_safely(tracer.gradient_checks.before_clip, thread)
                    raise
                if thread.position >= 0:
                    thread.position += 1
                return norm
            tracer.run_safely(tracer.fast_path.stop, thread)
        # Parameters may be a generator, which can be read only once.
        inputs = [parameters] if isinstance(parameters, Tensor) else [*parameters]
        forwarded: Any = inputs
        if not inputs and isinstance(parameters, GeneratorType):
            forwarded = (p for p in inputs)  # torch warns about an empty generator
        try:
            result = original(forwarded, *args, **kwargs)
        except RuntimeError:  # a non-finite norm with error_if_nonfinite=True
            tracer.run_safely(tracer.gradient_checks.before_clip, thread)
            raise
        bound = args[0] if args else kwargs.get("max_norm")
        try:
            entry = optimizers.of(inputs[0]) if inputs else None
            index = -1 if entry is None else entry.index
            code = None if entry is None else entry.clip_codes.get(flag)
            if code is None:
                code = tracer.event_code("clip", index, flags=(flag,))
                if entry is not None:
                    entry.clip_codes[flag] = code
            tracer.record_code(thread, code)
            if len(thread.losses) > 1:
                snapshot_gradients(tracer)
            if type(result) is Tensor and isinstance(bound, _NUMBERS):
                norm = thread.grad_norm
                if norm is None:
                    norm = result.item() if result.is_cpu else result.detach()
                elif entry is not None:
                    entry.last_clipped_step = entry.steps + 1
                thread.clips.append((index, norm, float(bound)))
        except Exception as error:  # as in ``Tracer.run_safely``
            tracer.fail(error)
        return result

    return clip


class _OptimizerLookup:
    """Finds the optimizer of a parameter."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._known: dict[int, tuple[weakref.ref[Tensor], OptimizerEntry]] = {}
        tracer.on_begin.append(self._known.clear)

    def of(self, parameter: Tensor) -> OptimizerEntry | None:
        """Return the entry of the first optimizer that has a parameter; None if no one has it."""
        known = self._known.get(id(parameter))
        if known is not None and known[0]() is parameter and known[1].ref() is not None:
            return known[1]
        for entry, _ in self._tracer.objects.optimizers.live_items():
            if any(p is parameter for p in entry.parameters()):
                self._known[id(parameter)] = weakref.ref(parameter), entry
                return entry
        return None
