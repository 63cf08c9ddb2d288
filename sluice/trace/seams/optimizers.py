"""Optimizer steps, by the hooks that torch calls for every optimizer, and ``zero_grad``."""

import functools
import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from sluice.trace.inventory import OptimizerEntry
from sluice.trace.lane import Lane
from sluice.trace.tracer import Tracer


def watch_optimizers(tracer: Tracer) -> None:
    """Mark the steps and the clearing of all optimizers, those that are there and later ones."""
    local = tracer.local

    def before(
        optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not tracer.is_on:
            return None
        lane = local.lane
        if lane.stepping is not None:
            return None  # one optimizer, or a step of its class, inside another: one step
        try:
            if lane.at >= 0:
                entry = lane.stepper
                if (
                    lane.at == lane.last
                    and entry.ref() is optimizer
                    and not kwargs
                    and len(args) < 2  # no closure
                    and len(optimizer.param_groups) == entry.num_groups
                ):
                    lane.at += 1
                    lane.stepping = optimizer
                    return None
                tracer.routine.leave(lane)
            closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
            lane.stepper = entry = _entry(tracer, optimizer)
            lane.stepping, lane.has_closure = optimizer, callable(closure)
            if len(optimizer.param_groups) != entry.num_groups:
                entry.num_groups, tracer.inventory.is_stale = len(optimizer.param_groups), True
            if callable(closure):
                lane.evaluations = 0
                told = _told(tracer, lane, entry, optimizer, closure)
                if "closure" in kwargs:
                    return args, {**kwargs, "closure": told}
                return (args[0], told, *args[2:]), kwargs
            _begin(tracer, lane, entry, optimizer)
        except Exception as error:  # as with ``guard``
            tracer.fail(error)
        return None

    def after(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
        lane = local.lane
        if lane.stepping is not optimizer or not tracer.is_on:
            return
        lane.stepping, entry = None, lane.stepper
        try:
            if lane.at >= 0:
                tracer.routine.end_step(lane)
                return
            if lane.has_closure:
                entry.searches |= lane.evaluations != 1
                if not lane.evaluations:
                    tracer.mark(lane, "step", entry.index, flags=("closure",))
                if entry.searches:
                    tracer.mark(lane, "stepped", entry.index)
                    entry.watch.remember()
            # By hand, in a hook of its own; one after the step may clear as it likes.
            may_clear = optimizer._optimizer_step_pre_hooks
            if may_clear and not optimizer._optimizer_step_post_hooks and entry.watch.is_zeroed():
                tracer.clear_before_update(lane)
            tracer.end_step(lane, entry)
            for look in tracer.after_step:
                look(entry, optimizer)
        except Exception as error:  # as with ``guard``
            tracer.fail(error)

    tracer.patches.hook(register_optimizer_step_pre_hook, before)
    tracer.patches.hook(register_optimizer_step_post_hook, after)
    _watch_zero(tracer)
    _watch_new(tracer)
    for optimizer in _those_there():
        entry = tracer.inventory.optimizers.find(optimizer)
        entry.rests = any(p.grad is not None for p in entry.parameters())
        entry.watch.is_cleared = not entry.rests


def _entry(tracer: Tracer, optimizer: Any) -> OptimizerEntry:
    optimizers = tracer.inventory.optimizers
    entry = optimizers.by_id.get(id(optimizer))
    if entry is None or entry.ref() is not optimizer:
        entry = optimizers.find(optimizer)
    return entry


def _begin(tracer: Tracer, lane: Lane, entry: OptimizerEntry, optimizer: Any) -> None:
    tracer.begin_step(lane, entry)
    if optimizer._optimizer_step_pre_hooks:
        entry.watch.await_update()
    for look in tracer.before_step:
        look(entry, optimizer)


def _told(
    tracer: Tracer, lane: Lane, entry: OptimizerEntry, optimizer: Any, closure: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a closure after whose first run the step begins: its gradients are there then."""

    @functools.wraps(closure)
    def told(*args: Any, **kwargs: Any) -> Any:
        try:
            found = closure(*args, **kwargs)
        except BaseException:
            lane.stepping = None  # the program may catch it
            raise
        if tracer.is_on and lane.stepping is optimizer:
            lane.evaluations += 1
            if lane.evaluations == 1:
                tracer.guard(_begin, tracer, lane, entry, optimizer)
        return found

    return told


def _those_there() -> list[Any]:
    """Return the optimizers that were made before."""
    kinds, todo = set[type](), [torch.optim.Optimizer]
    while todo:
        kind = todo.pop()
        if kind not in kinds:
            kinds.add(kind)
            todo += kind.__subclasses__()
    # Every object refers to its class: this asks for few of them, where all would be looked at.
    return [thing for thing in gc.get_referrers(*kinds) if type(thing) in kinds]


def _watch_zero(tracer: Tracer) -> None:
    of_optimizer, of_module = torch.optim.Optimizer.zero_grad, torch.nn.Module.zero_grad
    local = tracer.local

    @functools.wraps(of_optimizer)
    def zero_optimizer(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        if not tracer.is_on:
            of_optimizer(optimizer, *args, **kwargs)
            return
        lane = local.lane
        if lane.at >= 0:
            entry = lane.stepper
            if lane.word[lane.at] == entry.zero_code and entry.ref() is optimizer:
                of_optimizer(optimizer, *args, **kwargs)
                lane.at += 1
                return
            tracer.guard(_expect, tracer, lane, optimizer)
        of_optimizer(optimizer, *args, **kwargs)
        try:
            entry = _entry(tracer, optimizer)
            lane.zero_after_backward = True
            if lane.stepping is optimizer and entry.watch.is_before_update():
                tracer.clear_before_update(lane)  # by a hook of the optimizer's own
                return
            entry.watch.is_cleared = True
            if entry.zero_code < 0:
                entry.zero_code = tracer.code("zero", entry.index)
            tracer.event(lane, entry.zero_code)
        except Exception as error:  # as with ``guard``
            tracer.fail(error)

    @functools.wraps(of_module)
    def zero_module(module: Any, *args: Any, **kwargs: Any) -> None:
        of_module(module, *args, **kwargs)
        if tracer.is_on:
            tracer.guard(_module_zeroed, tracer)

    tracer.patches.replace(torch.optim.Optimizer, "zero_grad", zero_optimizer)
    tracer.patches.replace(torch.nn.Module, "zero_grad", zero_module)


def _expect(tracer: Tracer, lane: Lane, optimizer: Any) -> None:
    """See whether its gradients are cleared as expected, before they are."""
    if _entry(tracer, optimizer).zero_code != lane.word[lane.at]:
        tracer.routine.leave(lane)


def _watch_new(tracer: Tracer) -> None:
    original = torch.optim.Optimizer.__init__

    @functools.wraps(original)
    def make(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        if tracer.is_on:
            tracer.guard(_made, tracer, optimizer)

    tracer.patches.replace(torch.optim.Optimizer, "__init__", make)


def _made(tracer: Tracer, optimizer: Any) -> None:
    if tracer.own_steps is not None:
        tracer.own_steps.look(tracer.local.lane)
        tracer.own_steps = None
    tracer.inventory.optimizers.find(optimizer)
    tracer.inventory.is_stale = True
    if tracer.local.lane.at >= 0:
        tracer.routine.leave(tracer.local.lane)


def _module_zeroed(tracer: Tracer) -> None:
    # What it clears is seen by the gradients themselves, later.
    lane = tracer.local.lane
    lane.zero_after_backward = True
    tracer.mark(lane, "zero")
