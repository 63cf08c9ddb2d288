"""Hooks for ``GradScaler``: scaled losses, unscaling, skipped steps, and the scale."""

import functools
from typing import Any

from torch.amp.grad_scaler import GradScaler

from sluice.trace.hooks.calls import report_calls
from sluice.trace.tracer_context import TracerContext


def watch_scalers(tracer: TracerContext) -> None:
    """Record the program's calls of gradient scalers.

    Calls that a scaler makes itself are not recorded: ``step`` calls ``unscale_``.
    """
    scale, unscale, step, local = (
        GradScaler.scale,
        GradScaler.unscale_,
        GradScaler.step,
        tracer.local,
    )

    @functools.wraps(scale)
    def watched_scale(scaler: Any, *args: Any, **kwargs: Any) -> Any:
        if tracer.is_on and scaler.is_enabled():
            local.thread.backward.is_scaled = True
        return scale(scaler, *args, **kwargs)

    @functools.wraps(unscale)
    def watched_unscale(scaler: Any, optimizer: Any) -> None:
        thread = local.thread
        # Edits by the program are detected before unscaling, and new snapshots are taken after
        # it, because unscaling changes the gradients, too.
        if tracer.is_on and thread.edits.snapshots:
            tracer.run_safely(thread.edits.detect)
        unscale(scaler, optimizer)
        if tracer.is_on and thread.edits.snapshots:
            tracer.run_safely(lambda: thread.edits.snapshot(tracer.objects.optimizers.entries))
        if tracer.is_on and scaler.is_enabled() and not thread.in_scaler:
            tracer.run_safely(record_unscale, optimizer)

    @functools.wraps(step)
    def watched_step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not tracer.is_on or not scaler.is_enabled():
            return step(scaler, optimizer, *args, **kwargs)
        thread = local.thread
        num_steps_before, thread.in_scaler = thread.num_steps, True
        try:
            result = step(scaler, optimizer, *args, **kwargs)
        finally:
            thread.in_scaler = False
        if thread.num_steps == num_steps_before:
            tracer.run_safely(record_skip, optimizer)
        return result

    def record_unscale(optimizer: Any) -> None:
        index = tracer.objects.optimizers.get_or_add(optimizer).index
        tracer.events.record_event(local.thread, "unscale", index)

    def record_skip(optimizer: Any) -> None:
        entry = tracer.objects.optimizers.get_or_add(optimizer)
        tracer.events.record_event(local.thread, "skip", entry.index)
        entry.gradient_tracker.record_gradients()
        tracer.steps.end(local.thread, entry)

    def record_update(_: None, scaler: Any, *__: Any, **___: Any) -> None:
        if scaler.is_enabled():
            tracer.events.record_event(local.thread, "update scale")
            if scaler._scale is not None:  # ``get_scale()`` would synchronize with the device
                local.thread.step.loss_scale = scaler._scale.detach().clone().reshape(())

    tracer.patches.replace(GradScaler, "scale", watched_scale)
    tracer.patches.replace(GradScaler, "unscale_", watched_unscale)
    tracer.patches.replace(GradScaler, "step", watched_step)
    report_calls(tracer, GradScaler, "update", record_update)
