"""Learning-rate schedulers."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from sluice.trace.evidence.trace import SchedulerFact
from sluice.trace.inventory import SchedulerEntry
from sluice.trace.subjects import Registry
from sluice.trace.tracer import Tracer


def watch_schedulers(tracer: Tracer) -> None:
    """Mark the steps of all schedulers: every class has its own ``step``, later ones, too."""

    def reset() -> None:
        tracer.schedulers = Registry(functools.partial(_entry, tracer))

    reset()
    tracer.on_begin.append(reset)
    todo, seen = [LRScheduler], set[type]()
    while todo:
        cls = todo.pop()
        if cls not in seen:
            seen.add(cls)
            todo += cls.__subclasses__()
            _watch_class(tracer, cls)

    def watch_subclass(cls: type[LRScheduler], /, **kwargs: Any) -> None:
        super(LRScheduler, cls).__init_subclass__(**kwargs)
        if tracer.is_on:
            tracer.guard(_watch_class, tracer, cls)

    tracer.patches.replace(LRScheduler, "__init_subclass__", classmethod(watch_subclass))


def _watch_class(tracer: Tracer, cls: type) -> None:
    if "step" in vars(cls):
        tracer.patches.replace(cls, "step", _watched(tracer, vars(cls)["step"]))


def _watched(tracer: Tracer, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        lane = tracer.lane
        # A scheduler makes a step of its own when it is built, and some are made of others.
        if not tracer.is_on or lane.in_schedule or getattr(scheduler, "_step_count", 1) == 0:
            return original(scheduler, *args, **kwargs)
        lane.in_schedule = True
        try:
            found = original(scheduler, *args, **kwargs)
        finally:
            lane.in_schedule = False
        tracer.guard(_stepped, tracer, scheduler)
        return found

    return step


def _stepped(tracer: Tracer, scheduler: Any) -> None:
    entry = tracer.schedulers.find(scheduler)
    tracer.mark("schedule", entry.index, entry.optimizer)


def _entry(tracer: Tracer, index: int, scheduler: Any) -> SchedulerEntry:
    optimizer = getattr(scheduler, "optimizer", None)
    owner = -1 if optimizer is None else tracer.inventory.optimizers.find(optimizer).index
    kind = type(scheduler).__name__
    tracer.recorder.write("scheduler", SchedulerFact(index=index, kind=kind, optimizer=owner))
    return SchedulerEntry(index, weakref.ref(scheduler), owner)
