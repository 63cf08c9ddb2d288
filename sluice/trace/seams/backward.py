"""Backward passes: ``loss.backward()``, ``torch.autograd.backward`` and ``torch.autograd.grad``."""

import functools
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from sluice.trace.lane import Lane
from sluice.trace.seams.means import is_raw_mean, seal
from sluice.trace.tracer import Tracer

_RAW_MEAN: tuple[str, ...] = ("raw mean",)


def watch_backward(tracer: Tracer) -> None:
    """Mark every backward pass that the program itself begins."""
    backward, grad, local = torch.autograd.backward, torch.autograd.grad, tracer.local

    @functools.wraps(backward)
    def watched_backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        lane = local.lane
        if not tracer.is_on or lane.in_backward:  # checkpointing runs one inside another
            return backward(tensors, *args, **kwargs)
        # A sequence that can be read only once is left to torch.
        loss = tensors if type(tensors) is Tensor else None
        try:
            if lane.at >= 0:
                if (
                    loss is not None
                    and lane.word[lane.at] in tracer.backward_marks
                    and not lane.has_scaled
                    and loss.numel() == 1
                ):
                    # To read it from another device would wait.
                    value = loss.item() if loss.is_cpu else loss.detach().reshape(())
                    if type(value) is not float or isfinite(value):
                        lane.losses.append(value)
                    else:
                        tracer.routine.leave(lane)
                else:
                    tracer.routine.leave(lane)
            if lane.at < 0:
                _before(tracer, lane, loss)
        except Exception as error:  # as with ``guard``
            tracer.fail(error)
        lane.in_backward = True
        try:
            backward(tensors, *args, **kwargs)
        finally:
            lane.in_backward = False
        if lane.at >= 0:
            lane.at += 1
            return
        try:
            _after(tracer, lane, is_leaf=loss is not None and loss.is_leaf)
        except Exception as error:  # as with ``guard``
            tracer.fail(error)
        if tracer.acts is not None:
            tracer.acts.after_backward(tensors)

    @functools.wraps(grad)
    def watched_grad(*args: Any, **kwargs: Any) -> Any:
        found = grad(*args, **kwargs)
        if tracer.is_on and not tracer.local.lane.in_backward:
            tracer.guard(tracer.mark, tracer.local.lane, "grad")
        return found

    tracer.patches.replace_function(torch.autograd, "backward", watched_backward)
    tracer.patches.replace_function(torch.autograd, "grad", watched_grad)


def _before(tracer: Tracer, lane: Lane, loss: Tensor | None) -> None:
    for entry in tracer.inventory.optimizers.entries:
        if not entry.watch.is_cleared:
            entry.watch.before_backward()
    if lane.stepping is not None and not lane.has_closure:
        lane.stepping = None  # a step that raised and was caught
    if tracer.flows.is_due:
        began = tracer.clock()
        tracer.flows.learn(loss)
        lane.spent += tracer.clock() - began
    if tracer.own_steps is not None:
        tracer.own_steps.before_backward(lane)
    if lane.called in tracer.bare.indices and loss is not None and loss.numel() == 1:
        tracer.bare.meet(lane, loss)
    group = lane.group
    if group is not None and group.waits:
        group.waits = False
        if tracer.inputs is not None:
            tracer.inputs.learned(group)
    lane.is_raw_mean = False
    if loss is not None and loss.numel() == 1:
        # To read it from another device would wait.
        value = loss.item() if loss.is_cpu else loss.detach().reshape(())
        lane.losses.append(value)
        means = lane.means
        lane.is_raw_mean = (bool(means) and means[-1]() is loss) or is_raw_mean(loss, lane)
        by_hand = tracer.by_hand
        if by_hand is not None:
            by_hand.meet(loss)
            if by_hand.looks_left or tracer.has_statistics:
                by_hand.look(loss)
        # Only here can it be told what a loss came from.
        if type(value) is float and not isfinite(value) and tracer.losses is not None:
            tracer.losses.bad_loss()
            tracer.looks.at_bad_loss()


def _after(tracer: Tracer, lane: Lane, *, is_leaf: bool) -> None:
    lane.zero_after_backward = False
    if tracer.own_steps is not None:
        tracer.own_steps.learned(lane)
    tracer.bare.release()
    flags = _RAW_MEAN if lane.is_raw_mean else ()
    if is_leaf:
        flags = ("leaf", *flags)
    if lane.has_scaled:
        flags, lane.has_scaled = ("scaled", *flags), False
    else:  # a scale that is too large is no fault
        tracer.looks.after_backward(lane)
    if len(lane.losses) > 1:
        seal(tracer)
    code = tracer.backward_codes.get(flags)
    if code is None:
        code = tracer.backward_codes[flags] = tracer.code("backward", flags=flags)
        tracer.backward_marks.add(code)
    tracer.event(lane, code)
