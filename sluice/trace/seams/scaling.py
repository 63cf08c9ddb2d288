"""Gradient scalers of mixed precision: scaled losses, unscaling, skipped steps, the scale."""

import functools
from typing import Any

from torch.amp.grad_scaler import GradScaler

from sluice.trace.seams.means import check_seal, seal
from sluice.trace.tracer import Tracer


def watch_scalers(tracer: Tracer) -> None:
    """Mark what the program asks of gradient scalers; the calls among themselves are no marks."""
    scale, unscale, step, update = (
        GradScaler.scale,
        GradScaler.unscale_,
        GradScaler.step,
        GradScaler.update,
    )

    @functools.wraps(scale)
    def watched_scale(scaler: Any, *args: Any, **kwargs: Any) -> Any:
        if tracer.is_on and scaler.is_enabled():
            tracer.local.lane.has_scaled = True
        return scale(scaler, *args, **kwargs)

    @functools.wraps(unscale)
    def watched_unscale(scaler: Any, optimizer: Any) -> None:
        if tracer.is_on and tracer.local.lane.sealed:
            tracer.guard(check_seal, tracer.local.lane)
        unscale(scaler, optimizer)
        if tracer.is_on and tracer.local.lane.sealed:
            tracer.guard(seal, tracer)
        if tracer.is_on and scaler.is_enabled() and not tracer.local.lane.in_scaler:
            tracer.guard(_unscaled, tracer, optimizer)

    @functools.wraps(step)
    def watched_step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not tracer.is_on or not scaler.is_enabled():
            return step(scaler, optimizer, *args, **kwargs)
        lane, before = tracer.local.lane, tracer.local.lane.steps
        lane.in_scaler = True
        try:
            found = step(scaler, optimizer, *args, **kwargs)
        finally:
            lane.in_scaler = False
        tracer.guard(_stepped, tracer, optimizer, before)
        return found

    @functools.wraps(update)
    def watched_update(scaler: Any, *args: Any, **kwargs: Any) -> None:
        update(scaler, *args, **kwargs)
        if tracer.is_on and scaler.is_enabled():
            tracer.guard(_updated, tracer, scaler)

    for name, new in (
        ("scale", watched_scale),
        ("unscale_", watched_unscale),
        ("step", watched_step),
        ("update", watched_update),
    ):
        tracer.patches.replace(GradScaler, name, new)


def _unscaled(tracer: Tracer, optimizer: Any) -> None:
    tracer.mark(tracer.local.lane, "unscale", tracer.inventory.optimizers.find(optimizer).index)


def _stepped(tracer: Tracer, optimizer: Any, before: int) -> None:
    lane = tracer.local.lane
    if lane.steps == before:
        entry = tracer.inventory.optimizers.find(optimizer)
        tracer.mark(lane, "skip", entry.index)
        entry.watch.remember()
        tracer.end_step(lane, entry)


def _updated(tracer: Tracer, scaler: Any) -> None:
    tracer.mark(tracer.local.lane, "update scale")
    if scaler._scale is not None:  # a public reader would wait for the device
        tracer.local.lane.scale = scaler._scale.detach().clone().reshape(())
