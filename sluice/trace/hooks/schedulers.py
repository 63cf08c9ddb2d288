"""Hooks for learning-rate schedulers."""

import functools
from collections.abc import Callable
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from sluice.trace.hooks.checkpoints import watch_load_state_dict
from sluice.trace.hooks.scheduler_records import get_or_add_scheduler
from sluice.trace.tracer_context import TracerContext


def watch_schedulers(tracer: TracerContext) -> None:
    """Record the steps of all schedulers.

    Each class may define its own ``step``, so every class is hooked: existing classes now, and
    later classes when the program defines them.
    """
    pending_classes, hooked_classes = [LRScheduler], set[type]()
    while pending_classes:
        cls = pending_classes.pop()
        if cls not in hooked_classes:
            hooked_classes.add(cls)
            pending_classes += cls.__subclasses__()
            _watch_class(tracer, cls)

    def watch_subclass(cls: type[LRScheduler], /, **kwargs: Any) -> None:
        super(LRScheduler, cls).__init_subclass__(**kwargs)
        if tracer.is_on:
            tracer.run_safely(_watch_class, tracer, cls)

    tracer.patches.replace(LRScheduler, "__init_subclass__", classmethod(watch_subclass))


def _watch_class(tracer: TracerContext, cls: type) -> None:
    if "step" in vars(cls):
        tracer.patches.replace(cls, "step", _wrap_step(tracer, vars(cls)["step"]))
    if cls is not LRScheduler:
        watch_load_state_dict(tracer, cls, "scheduler")


def _wrap_step(tracer: TracerContext, original: Callable[..., Any]) -> Callable[..., Any]:
    local = tracer.local

    @functools.wraps(original)
    def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        thread = local.thread
        # Not recorded: the step that a scheduler makes when it is created, and the steps that one
        # scheduler makes for another scheduler.
        if not tracer.is_on or thread.in_scheduler or getattr(scheduler, "_step_count", 1) == 0:
            return original(scheduler, *args, **kwargs)
        thread.in_scheduler = True
        try:
            result = original(scheduler, *args, **kwargs)
        finally:
            thread.in_scheduler = False
        try:
            entry = tracer.objects.schedulers.by_id.get(id(scheduler))
            if entry is None or entry.ref() is not scheduler:
                entry = get_or_add_scheduler(tracer, scheduler, has_stepped=True)
            tracer.events.record(thread, entry.step_code)
        except Exception as error:  # inlines ``run_safely``, to save a call
            tracer.fail(error)
        return result

    return step
