"""Hooks for ``loss.backward()``, ``torch.autograd.backward`` and ``torch.autograd.grad``."""

import functools
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from sluice.trace.hooks.loss_reduction import is_unscaled_mean
from sluice.trace.program_events import (
    BackwardBegins,
    BackwardEnded,
    NonFiniteLoss,
    ScalarBackwardBegins,
    TraceBegan,
)
from sluice.trace.thread_state import ThreadState
from sluice.trace.tracer_context import TracerContext


def watch_backward(tracer: TracerContext) -> None:
    """Record every backward pass that the program starts."""
    backward, grad, local = torch.autograd.backward, torch.autograd.grad, tracer.local
    backward_recorder = _BackwardRecorder(tracer)

    @functools.wraps(backward)
    def watched_backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        thread = local.thread
        if not tracer.is_on or thread.backward.is_running:  # checkpointing nests backward passes
            return backward(tensors, *args, **kwargs)
        try:
            backward_recorder.before_backward(thread, tensors)
        except Exception as error:  # inlines ``run_safely``, to save a call
            tracer.fail(error)
        thread.backward.is_running = True
        try:
            backward(tensors, *args, **kwargs)
        finally:
            thread.backward.is_running = False
            # Also after an error: the next backward pass may be of a loss that is not scaled.
            is_scaled, thread.backward.is_scaled = thread.backward.is_scaled, False
        try:
            tracer.bus.publish(BackwardEnded(thread, tensors, is_scaled))
        except Exception as error:  # inlines ``run_safely``, to save a call
            tracer.fail(error)

    @functools.wraps(grad)
    def watched_grad(*args: Any, **kwargs: Any) -> Any:
        gradients = grad(*args, **kwargs)
        if tracer.is_on and not local.thread.backward.is_running:
            tracer.run_safely(tracer.events.record_event, local.thread, "grad")
        return gradients

    tracer.patches.replace_function(torch.autograd, "backward", watched_backward)
    tracer.patches.replace_function(torch.autograd, "grad", watched_grad)


class _BackwardRecorder:
    """Records the backward passes of all threads."""

    def __init__(self, tracer: TracerContext) -> None:
        self._tracer = tracer
        self._codes: dict[tuple[str, ...], int] = {}
        """Event codes of backward passes by their flags."""
        tracer.bus.subscribe(TraceBegan, lambda _: self._codes.clear())
        tracer.bus.subscribe(BackwardEnded, self._on_end)

    def before_backward(self, thread: ThreadState, tensors: Any) -> None:
        """Inspect gradients and loss before a backward pass runs."""
        tracer = self._tracer
        for entry in tracer.objects.optimizers.entries:
            if not entry.gradient_tracker.is_cleared:
                entry.gradient_tracker.before_backward()
        # Several tensors are not inspected: they may be a generator, which can be read only once. A
        # loss on the meta device has no value.
        loss = tensors if type(tensors) is Tensor and not tensors.is_meta else None
        tracer.bus.publish(BackwardBegins(thread, loss))
        thread.backward.is_unscaled_mean = False
        if loss is None or loss.numel() != 1:
            return
        # A loss on another device is read later, because reading it would synchronize with the
        # device.
        value = loss.item() if loss.is_cpu else loss.detach().reshape(())
        thread.step.losses.append(value)
        thread.backward.is_unscaled_mean = is_unscaled_mean(loss, thread)
        tracer.bus.publish(ScalarBackwardBegins(thread, loss))
        # Published now, because the cause can only be found while the graph and the inputs exist.
        if type(value) is float and not isfinite(value):
            tracer.bus.publish(NonFiniteLoss(thread))

    def _on_end(self, ended: BackwardEnded) -> None:
        tracer, thread = self._tracer, ended.thread
        thread.backward.is_followed_by_zeroing = False
        flags = ("unscaled mean",) * thread.backward.is_unscaled_mean
        if type(ended.tensors) is Tensor and ended.tensors.is_leaf:
            flags = ("leaf", *flags)
        if ended.is_scaled:
            flags = ("scaled", *flags)
        if len(thread.step.losses) > 1:
            # A snapshot is taken, to detect whether the program divides the accumulated gradients.
            thread.edits.snapshot(tracer.objects.optimizers.entries)
        code = self._codes.get(flags)
        if code is None:
            code = self._codes[flags] = tracer.events.code("backward", flags=flags)
        tracer.events.record(thread, code)
