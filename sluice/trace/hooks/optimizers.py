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

from sluice.trace.hooks.calls import report_calls
from sluice.trace.objects.object_tracker import OptimizerEntry
from sluice.trace.program_events import (
    BackwardBegins,
    GradientsCleared,
    OptimizerCreated,
    StepBegins,
    StepEnded,
)
from sluice.trace.thread_state import ThreadState
from sluice.trace.tracer_context import TracerContext


def watch_optimizers(tracer: TracerContext) -> None:
    """Record steps and ``zero_grad`` of all optimizers, existing and later ones."""
    local = tracer.local

    def before_step(
        optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        call = local.thread.optimizer_call
        if not tracer.is_on or call.running_optimizer is not None:
            return None  # an inner step belongs to the outer step
        try:
            # args[0] is the optimizer itself.
            closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
            call.entry = entry = tracer.objects.optimizers.get_or_add(optimizer)
            call.running_optimizer, call.has_closure = optimizer, callable(closure)
            if len(optimizer.param_groups) != entry.num_groups:
                entry.num_groups, tracer.objects.has_changed = len(optimizer.param_groups), True
            if callable(closure):
                call.num_closure_calls = 0
                observed_closure = _wrap_closure(tracer, local.thread, entry, optimizer, closure)
                if "closure" in kwargs:
                    return args, {**kwargs, "closure": observed_closure}
                return (args[0], observed_closure, *args[2:]), kwargs
            _begin_step(tracer, local.thread, entry, optimizer)
        except Exception as error:  # inlines ``run_safely``, to save a call
            tracer.fail(error)
        return None

    def after_step(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
        call = local.thread.optimizer_call
        if call.running_optimizer is optimizer and tracer.is_on:
            call.running_optimizer = None
            try:
                _end_step(tracer, local.thread, call.entry, optimizer)
            except Exception as error:  # inlines ``run_safely``, to save a call
                tracer.fail(error)

    def on_backward(begins: BackwardBegins) -> None:
        call = begins.thread.optimizer_call
        if call.running_optimizer is not None and not call.has_closure:
            call.running_optimizer = None  # a step raised an error, which the program caught

    tracer.bus.subscribe(BackwardBegins, on_backward)
    tracer.patches.hook(register_optimizer_step_pre_hook, before_step)
    tracer.patches.hook(register_optimizer_step_post_hook, after_step)
    _watch_zero_grad(tracer)
    _watch_creation(tracer)
    for optimizer in _existing_optimizers():
        entry = tracer.objects.optimizers.get_or_add(optimizer)
        # The flag holds until the optimizer steps or its gradients are cleared.
        entry.has_untraced_gradients = any(p.grad is not None for p in entry.parameters())
        entry.gradient_tracker.is_cleared = not entry.has_untraced_gradients


def _begin_step(
    tracer: TracerContext, thread: ThreadState, entry: OptimizerEntry, optimizer: Any
) -> None:
    tracer.steps.begin(thread, entry)
    if optimizer._optimizer_step_pre_hooks:  # a pre-step hook may clear gradients
        entry.gradient_tracker.record_weight_versions()
    tracer.bus.publish(StepBegins(thread, entry, optimizer))


def _end_step(
    tracer: TracerContext, thread: ThreadState, entry: OptimizerEntry, optimizer: Any
) -> None:
    call = thread.optimizer_call
    if call.has_closure:
        entry.has_irregular_closure_calls |= call.num_closure_calls != 1
        if not call.num_closure_calls:  # ``_begin_step`` did not run
            tracer.events.record_event(thread, "step", entry.index, flags=("closure",))
        # The "step" event follows the first closure call; "stepped" marks the end of the step.
        if entry.has_irregular_closure_calls:
            tracer.events.record_event(thread, "stepped", entry.index)
            entry.gradient_tracker.record_gradients()
    # A pre-step hook that zeroes gradients is a fault: the update does not use them. A post-step
    # hook may correctly zero gradients, so optimizers with a post-step hook are not checked.
    if (
        optimizer._optimizer_step_pre_hooks
        and not optimizer._optimizer_step_post_hooks
        and entry.gradient_tracker.is_zeroed()
    ):
        tracer.events.mark_cleared_before_update(thread)
    tracer.steps.end(thread, entry)
    if tracer.bus.has_subscribers(StepEnded):
        tracer.bus.publish(StepEnded(entry))


def _wrap_closure(
    tracer: TracerContext,
    thread: ThreadState,
    entry: OptimizerEntry,
    optimizer: Any,
    closure: Callable[..., Any],
) -> Callable[..., Any]:
    """Return a closure that records the start of the step after its first call.

    The gradients of the step do not exist before this call.
    """

    @functools.wraps(closure)
    def observed_closure(*args: Any, **kwargs: Any) -> Any:
        try:
            loss = closure(*args, **kwargs)
        except BaseException:
            # The program may catch the exception, and then the step has ended.
            thread.optimizer_call.running_optimizer = None
            raise
        if tracer.is_on and thread.optimizer_call.running_optimizer is optimizer:
            thread.optimizer_call.num_closure_calls += 1
            if thread.optimizer_call.num_closure_calls == 1:
                tracer.run_safely(_begin_step, tracer, thread, entry, optimizer)
        return loss

    return observed_closure


def _existing_optimizers() -> list[Any]:
    """Return the optimizers that were created before the trace."""
    classes, pending_classes = set[type](), [torch.optim.Optimizer]
    while pending_classes:
        cls = pending_classes.pop()
        if cls not in classes:
            classes.add(cls)
            pending_classes += cls.__subclasses__()
    # Every object refers to its class, so the optimizers are among the referrers of the classes.
    # Searching the referrers is much faster than searching all objects of the process.
    return [referrer for referrer in gc.get_referrers(*classes) if type(referrer) in classes]


def _watch_zero_grad(tracer: TracerContext) -> None:
    original, local = torch.optim.Optimizer.zero_grad, tracer.local

    def record_zero_grad(optimizer: Any) -> None:
        thread, entry = local.thread, tracer.objects.optimizers.get_or_add(optimizer)
        thread.backward.is_followed_by_zeroing = True
        tracker = entry.gradient_tracker
        if thread.optimizer_call.running_optimizer is optimizer and tracker.is_before_update():
            tracer.events.mark_cleared_before_update(thread)  # cleared by a hook of the optimizer
            return
        tracker.is_cleared = True
        if entry.zero_grad_code < 0:
            entry.zero_grad_code = tracer.events.code("zero", entry.index)
        tracer.events.record(thread, entry.zero_grad_code)
        tracer.bus.publish(GradientsCleared(optimizer))

    @functools.wraps(original)
    def zero_grad(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        if tracer.is_on:
            try:
                record_zero_grad(optimizer)
            except Exception as error:  # inlines ``run_safely``, to save a call
                tracer.fail(error)

    def record_module_zero_grad(_: None, module: torch.nn.Module, *__: Any, **___: Any) -> None:
        # Which gradients were cleared is observed later, at the step.
        local.thread.backward.is_followed_by_zeroing = True
        tracer.events.record_event(local.thread, "zero")
        tracer.bus.publish(GradientsCleared(module))

    tracer.patches.replace(torch.optim.Optimizer, "zero_grad", zero_grad)
    report_calls(tracer, torch.nn.Module, "zero_grad", record_module_zero_grad)


def _watch_creation(tracer: TracerContext) -> None:
    def on_created(_: None, optimizer: Any, *__: Any, **___: Any) -> None:
        tracer.bus.publish(OptimizerCreated(tracer.local.thread))
        tracer.objects.optimizers.get_or_add(optimizer)
        tracer.objects.has_changed = True

    report_calls(tracer, torch.optim.Optimizer, "__init__", on_created)
