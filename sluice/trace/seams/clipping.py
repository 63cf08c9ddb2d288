"""Gradient clipping by norm and by value."""

import functools
from collections.abc import Callable
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor

from sluice.trace.lane import Lane
from sluice.trace.seams.means import check_seal, seal
from sluice.trace.tracer import Tracer


def watch_clipping(tracer: Tracer) -> None:
    """Mark ``clip_grad_norm_`` and ``clip_grad_value_``."""
    for name, flag in (("clip_grad_norm_", "norm"), ("clip_grad_value_", "value")):
        original = getattr(torch.nn.utils, name)
        tracer.patches.replace_function(torch.nn.utils, name, _watched(tracer, original, flag))


def _watched(tracer: Tracer, original: Callable[..., Any], flag: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if not tracer.is_on:
            return original(parameters, *args, **kwargs)
        lane = tracer.local.lane
        if lane.sealed:
            tracer.guard(check_seal, lane)
        if isinstance(parameters, Tensor):
            given: list[Any] = [parameters]
            found = original(parameters, *args, **kwargs)
        else:
            given = list(parameters)  # may be read only once
            # Torch warns of a generator without anything in it.
            is_empty = not given and isinstance(parameters, GeneratorType)
            again = (p for p in given) if is_empty else given
            found = original(again, *args, **kwargs)
        most = args[0] if args else kwargs.get("max_norm")
        try:
            _clipped(tracer, lane, given, flag, found, most)
        except Exception as error:  # as with ``guard``
            tracer.fail(error)
        return found

    return clip


def _clipped(
    tracer: Tracer, lane: Lane, parameters: list[Any], flag: str, norm: Any, most: Any
) -> None:
    subject = tracer.owner_of(parameters[0]) if parameters else -1
    tracer.mark(lane, "clip", subject, -1, (flag,))
    if len(lane.losses) > 1:
        seal(tracer)
    if type(norm) is Tensor and isinstance(most, int | float):
        value = norm.item() if norm.is_cpu else norm.detach()
        lane.clips.append((subject, value, float(most)))
