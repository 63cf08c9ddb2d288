"""Hooks for ``step`` and ``zero_grad`` of all optimizers."""

import functools
import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from sluice.trace.object_tracker import OptimizerEntry
from sluice.trace.thread_state import ThreadState
from sluice.trace.tracer import Tracer


def watch_optimizers(tracer: Tracer) -> None:
    """Record steps and ``zero_grad`` of all optimizers, existing and later ones."""
    local = tracer.local

    def before(
        optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not tracer.is_on:
            return None
        thread = local.thread
        if thread.stepping_optimizer is not None:
            return None  # a step inside another step counts as one
        try:
            if thread.position >= 0:
                entry = thread.optimizer_entry
                if (
                    thread.position == thread.step_position
                    and entry.ref() is optimizer
                    and not kwargs
                    and len(args) < 2  # no closure
                    and len(optimizer.param_groups) == entry.num_groups
                ):
                    thread.position += 1
                    thread.stepping_optimizer = optimizer
                    return None
                tracer.fast_path.stop(thread)
            closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
            thread.optimizer_entry = entry = _entry(tracer, optimizer)
            thread.stepping_optimizer, thread.has_closure = optimizer, callable(closure)
            if len(optimizer.param_groups) != entry.num_groups:
                entry.num_groups, tracer.objects.is_stale = len(optimizer.param_groups), True
            if callable(closure):
                thread.closure_calls = 0
                observed = _observed_closure(tracer, thread, entry, optimizer, closure)
                if "closure" in kwargs:
                    return args, {**kwargs, "closure": observed}
                return (args[0], observed, *args[2:]), kwargs
            _begin_step(tracer, thread, entry, optimizer)
        except Exception as error:  # as in ``Tracer.run_safely``
            tracer.fail(error)
        return None

    def after(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
        thread = local.thread
        if thread.stepping_optimizer is not optimizer or not tracer.is_on:
            return
        thread.stepping_optimizer, entry = None, thread.optimizer_entry
        try:
            if thread.position >= 0:
                tracer.fast_path.end_step(thread)
                return
            if thread.has_closure:
                entry.reruns_closure |= thread.closure_calls != 1
                if not thread.closure_calls:
                    tracer.record_event(thread, "step", entry.index, flags=("closure",))
                if entry.reruns_closure:
                    tracer.record_event(thread, "stepped", entry.index)
                    entry.gradient_tracker.record_gradients()
            # A pre-step hook may have set gradients to zero; a post-step hook is free to do so.
            may_clear = optimizer._optimizer_step_pre_hooks
            if (
                may_clear
                and not optimizer._optimizer_step_post_hooks
                and entry.gradient_tracker.is_zeroed()
            ):
                tracer.mark_cleared_before_update(thread)
            tracer.end_step(thread, entry)
            for callback in tracer.after_step:
                callback(entry, optimizer)
        except Exception as error:  # as in ``Tracer.run_safely``
            tracer.fail(error)

    tracer.patches.hook(register_optimizer_step_pre_hook, before)
    tracer.patches.hook(register_optimizer_step_post_hook, after)
    _watch_zero(tracer)
    _watch_new(tracer)
    for optimizer in _existing_optimizers():
        entry = tracer.objects.optimizers.get_or_add(optimizer)
        entry.is_dormant = any(p.grad is not None for p in entry.parameters())
        entry.gradient_tracker.is_cleared = not entry.is_dormant


def _entry(tracer: Tracer, optimizer: Any) -> OptimizerEntry:
    optimizers = tracer.objects.optimizers
    entry = optimizers.by_id.get(id(optimizer))
    if entry is None or entry.ref() is not optimizer:
        entry = optimizers.get_or_add(optimizer)
    return entry


def _begin_step(tracer: Tracer, thread: ThreadState, entry: OptimizerEntry, optimizer: Any) -> None:
    tracer.begin_step(thread, entry)
    if optimizer._optimizer_step_pre_hooks:
        entry.gradient_tracker.record_weight_versions()
    for callback in tracer.before_step:
        callback(entry, optimizer)


def _observed_closure(
    tracer: Tracer,
    thread: ThreadState,
    entry: OptimizerEntry,
    optimizer: Any,
    closure: Callable[..., Any],
) -> Callable[..., Any]:
    """Return a closure that begins the step after its first run, when the gradients exist."""

    @functools.wraps(closure)
    def observed(*args: Any, **kwargs: Any) -> Any:
        try:
            loss = closure(*args, **kwargs)
        except BaseException:
            thread.stepping_optimizer = None  # the program may catch it
            raise
        if tracer.is_on and thread.stepping_optimizer is optimizer:
            thread.closure_calls += 1
            if thread.closure_calls == 1:
                tracer.run_safely(_begin_step, tracer, thread, entry, optimizer)
        return loss

    return observed


def _existing_optimizers() -> list[Any]:
    """Return the optimizers that were created before the trace."""
    kinds, todo = set[type](), [torch.optim.Optimizer]
    while todo:
        kind = todo.pop()
        if kind not in kinds:
            kinds.add(kind)
            todo += kind.__subclasses__()
    # Every object refers to its class, so this visits far fewer objects than ``gc.get_objects``.
    return [referrer for referrer in gc.get_referrers(*kinds) if type(referrer) in kinds]


def _watch_zero(tracer: Tracer) -> None:
    of_optimizer, of_module = torch.optim.Optimizer.zero_grad, torch.nn.Module.zero_grad
    local = tracer.local

    @functools.wraps(of_optimizer)
    def zero_optimizer(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        if not tracer.is_on:
            of_optimizer(optimizer, *args, **kwargs)
            return
        thread = local.thread
        if thread.position >= 0:
            entry = thread.optimizer_entry
            if (
                thread.expected_codes[thread.position] == entry.zero_code
                and entry.ref() is optimizer
            ):
                of_optimizer(optimizer, *args, **kwargs)
                thread.position += 1
                return
            tracer.run_safely(_check_expected_zero, tracer, thread, optimizer)
        of_optimizer(optimizer, *args, **kwargs)
        try:
            entry = _entry(tracer, optimizer)
            thread.is_zeroed_after_backward = True
            if thread.stepping_optimizer is optimizer and entry.gradient_tracker.is_before_update():
                tracer.mark_cleared_before_update(thread)  # cleared by a hook of the optimizer
                return
            entry.gradient_tracker.is_cleared = True
            if entry.zero_code < 0:
                entry.zero_code = tracer.event_code("zero", entry.index)
            tracer.record_code(thread, entry.zero_code)
        except Exception as error:  # as in ``Tracer.run_safely``
            tracer.fail(error)

    @functools.wraps(of_module)
    def zero_module(module: Any, *args: Any, **kwargs: Any) -> None:
        of_module(module, *args, **kwargs)
        if tracer.is_on:
            tracer.run_safely(_module_zeroed, tracer)

    tracer.patches.replace(torch.optim.Optimizer, "zero_grad", zero_optimizer)
    tracer.patches.replace(torch.nn.Module, "zero_grad", zero_module)


def _check_expected_zero(tracer: Tracer, thread: ThreadState, optimizer: Any) -> None:
    """Leave the fast path if this optimizer was not expected to clear its gradients now."""
    if _entry(tracer, optimizer).zero_code != thread.expected_codes[thread.position]:
        tracer.fast_path.stop(thread)


def _watch_new(tracer: Tracer) -> None:
    original = torch.optim.Optimizer.__init__

    @functools.wraps(original)
    def make(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        if tracer.is_on:
            tracer.run_safely(_optimizer_created, tracer, optimizer)

    tracer.patches.replace(torch.optim.Optimizer, "__init__", make)


def _optimizer_created(tracer: Tracer, optimizer: Any) -> None:
    if tracer.manual_updates is not None:
        tracer.manual_updates.detect_step(tracer.local.thread)
        tracer.manual_updates = None
    tracer.objects.optimizers.get_or_add(optimizer)
    tracer.objects.is_stale = True
    if tracer.local.thread.position >= 0:
        tracer.fast_path.stop(tracer.local.thread)


def _module_zeroed(tracer: Tracer) -> None:
    # The gradients that it clears are observed later, at the step.
    thread = tracer.local.thread
    thread.is_zeroed_after_backward = True
    tracer.record_event(thread, "zero")
