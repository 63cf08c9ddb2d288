"""Gradient clipping by norm and by value."""

import functools
import math
import weakref
from collections.abc import Callable
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

from sluice.trace.inventory import OptimizerEntry
from sluice.trace.seams.means import check_seal, seal
from sluice.trace.tracer import Tracer

_NUMBERS = (float, int)
"""Made once: a union of types would be made at every call."""

_SCALES = "_clip_grads_with_norm_"
"""What ``clip_grad_norm_`` calls once the norm is known, where this version of torch has it."""


def watch_clipping(tracer: Tracer) -> None:
    """Mark ``clip_grad_norm_`` and ``clip_grad_value_``."""
    owners = _Owners(tracer)
    for name, flag in (("clip_grad_norm_", "norm"), ("clip_grad_value_", "value")):
        original = getattr(torch.nn.utils, name)
        new = _watched(tracer, owners, original, flag)
        tracer.patches.replace_function(torch.nn.utils, name, new)
    if hasattr(clip_grad, _SCALES):
        _watch_scaling(tracer, getattr(clip_grad, _SCALES))


def _watch_scaling(tracer: Tracer, original: Callable[..., Any]) -> None:
    """Look at gradients whose norm is not finite before a clip makes NaN of all of them."""
    local = tracer.local

    @functools.wraps(original)
    def scale(parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any) -> None:
        # To read it from another device would wait.
        if type(total_norm) is Tensor and total_norm.is_cpu and tracer.is_on:
            lane = local.lane
            lane.norm = norm = total_norm.item()
            if not math.isfinite(norm):
                if lane.at >= 0:
                    tracer.guard(tracer.routine.leave, lane)
                tracer.guard(tracer.looks.before_clip, lane)
        original(parameters, max_norm, total_norm, *args, **kwargs)

    tracer.patches.replace(clip_grad, _SCALES, scale)


def _watched(
    tracer: Tracer, owners: "_Owners", original: Callable[..., Any], flag: str
) -> Callable[..., Any]:
    local = tracer.local

    @functools.wraps(original)
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if not tracer.is_on:
            return original(parameters, *args, **kwargs)
        lane = local.lane
        lane.norm = None
        if lane.sealed:
            tracer.guard(check_seal, lane)
        if lane.at >= 0:
            if lane.word[lane.at] == lane.stepper.clip_codes.get(flag):
                try:
                    found = original(parameters, *args, **kwargs)
                except RuntimeError:
                    tracer.guard(tracer.routine.leave, lane)
                    tracer.guard(tracer.looks.before_clip, lane)
                    raise
                if lane.at >= 0:
                    lane.at += 1
                return found
            tracer.guard(tracer.routine.leave, lane)
        given = [parameters] if isinstance(parameters, Tensor) else [*parameters]  # read only once
        again: Any = given
        if not given and isinstance(parameters, GeneratorType):
            again = (p for p in given)  # torch warns of one without anything in it
        try:
            found = original(again, *args, **kwargs)
        except RuntimeError:  # of a norm that is not finite, where that was asked for
            tracer.guard(tracer.looks.before_clip, lane)
            raise
        most = args[0] if args else kwargs.get("max_norm")
        try:
            entry = owners.of(given[0]) if given else None
            subject = -1 if entry is None else entry.index
            code = None if entry is None else entry.clip_codes.get(flag)
            if code is None:
                code = tracer.code("clip", subject, flags=(flag,))
                if entry is not None:
                    entry.clip_codes[flag] = code
            tracer.event(lane, code)
            if len(lane.losses) > 1:
                seal(tracer)
            if type(found) is Tensor and isinstance(most, _NUMBERS):
                norm = lane.norm
                if norm is None:
                    norm = found.item() if found.is_cpu else found.detach()
                elif entry is not None:
                    entry.clipped = entry.steps + 1
                lane.clips.append((subject, norm, float(most)))
        except Exception as error:  # as with ``guard``
            tracer.fail(error)
        return found

    return clip


class _Owners:
    """Which optimizer has a parameter."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._known: dict[int, tuple[weakref.ref[Tensor], OptimizerEntry]] = {}
        tracer.on_begin.append(self._known.clear)

    def of(self, parameter: Tensor) -> OptimizerEntry | None:
        """Return the entry of the first one that has it; None for none."""
        known = self._known.get(id(parameter))
        if known is not None and known[0]() is parameter and known[1].ref() is not None:
            return known[1]
        for entry, _ in self._tracer.inventory.optimizers.alive():
            if any(p is parameter for p in entry.parameters()):
                self._known[id(parameter)] = weakref.ref(parameter), entry
                return entry
        return None
