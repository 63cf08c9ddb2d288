"""Hooks for ``GradScaler``: scaled losses, unscaling, skipped steps, and the scale."""

import functools
from typing import Any

from torch.amp.grad_scaler import GradScaler

from sluice.trace.hooks.gradient_edits import detect_gradient_edit, snapshot_gradients
from sluice.trace.tracer import Tracer


def watch_scalers(tracer: Tracer) -> None:
    """Record calls of gradient scalers by the program, but not their internal calls."""
    scale, unscale, step, update = (
        GradScaler.scale,
        GradScaler.unscale_,
        GradScaler.step,
        GradScaler.update,
    )

    @functools.wraps(scale)
    def watched_scale(scaler: Any, *args: Any, **kwargs: Any) -> Any:
        if tracer.is_on and scaler.is_enabled():
            tracer.local.thread.has_scaled_loss = True
        return scale(scaler, *args, **kwargs)

    @functools.wraps(unscale)
    def watched_unscale(scaler: Any, optimizer: Any) -> None:
        if tracer.is_on and tracer.local.thread.gradient_snapshots:
            tracer.run_safely(detect_gradient_edit, tracer.local.thread)
        unscale(scaler, optimizer)
        if tracer.is_on and tracer.local.thread.gradient_snapshots:
            tracer.run_safely(snapshot_gradients, tracer)
        if tracer.is_on and scaler.is_enabled() and not tracer.local.thread.in_scaler:
            tracer.run_safely(_unscaled, tracer, optimizer)

    @functools.wraps(step)
    def watched_step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not tracer.is_on or not scaler.is_enabled():
            return step(scaler, optimizer, *args, **kwargs)
        thread, before = tracer.local.thread, tracer.local.thread.steps
        thread.in_scaler = True
        try:
            result = step(scaler, optimizer, *args, **kwargs)
        finally:
            thread.in_scaler = False
        tracer.run_safely(_stepped, tracer, optimizer, before)
        return result

    @functools.wraps(update)
    def watched_update(scaler: Any, *args: Any, **kwargs: Any) -> None:
        update(scaler, *args, **kwargs)
        if tracer.is_on and scaler.is_enabled():
            tracer.run_safely(_updated, tracer, scaler)

    for name, new in (
        ("scale", watched_scale),
        ("unscale_", watched_unscale),
        ("step", watched_step),
        ("update", watched_update),
    ):
        tracer.patches.replace(GradScaler, name, new)


def _unscaled(tracer: Tracer, optimizer: Any) -> None:
    tracer.record_event(
        tracer.local.thread, "unscale", tracer.objects.optimizers.get_or_add(optimizer).index
    )


def _stepped(tracer: Tracer, optimizer: Any, before: int) -> None:
    thread = tracer.local.thread
    if thread.steps == before:
        entry = tracer.objects.optimizers.get_or_add(optimizer)
        tracer.record_event(thread, "skip", entry.index)
        entry.gradient_tracker.record_gradients()
        tracer.end_step(thread, entry)


def _updated(tracer: Tracer, scaler: Any) -> None:
    tracer.record_event(tracer.local.thread, "update scale")
    if scaler._scale is not None:  # the public getter would synchronize with the device
        tracer.local.thread.loss_scale = scaler._scale.detach().clone().reshape(())
