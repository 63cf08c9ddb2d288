"""Hooks for learning-rate schedulers."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    SequentialLR,
)

from sluice.trace.hooks.checkpoints import watch_load
from sluice.trace.object_index import ObjectIndex
from sluice.trace.object_tracker import SchedulerEntry
from sluice.trace.records.trace import SchedulerRecord
from sluice.trace.tracer import Tracer

_STATE_ATTRIBUTES = frozenset({"last_epoch", "num_bad_epochs", "best", "T_cur", "verbose"})
_MAX_LIST_LENGTH = 16


def watch_schedulers(tracer: Tracer) -> None:
    """Record the steps of all schedulers: each class defines its own ``step``, later ones, too."""

    def reset() -> None:
        tracer.schedulers = ObjectIndex(functools.partial(_entry, tracer))

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
            tracer.run_safely(_watch_class, tracer, cls)

    tracer.patches.replace(LRScheduler, "__init_subclass__", classmethod(watch_subclass))


def _watch_class(tracer: Tracer, cls: type) -> None:
    if "step" in vars(cls):
        tracer.patches.replace(cls, "step", _watched(tracer, vars(cls)["step"]))
    if cls is not LRScheduler:
        watch_load(tracer, cls, "scheduler")


def _watched(tracer: Tracer, original: Callable[..., Any]) -> Callable[..., Any]:
    local = tracer.local

    @functools.wraps(original)
    def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        thread = local.thread
        # A scheduler steps when it is created, and some schedulers call the step of others.
        if not tracer.is_on or thread.in_scheduler or getattr(scheduler, "_step_count", 1) == 0:
            return original(scheduler, *args, **kwargs)
        thread.in_scheduler = True
        try:
            result = original(scheduler, *args, **kwargs)
        finally:
            thread.in_scheduler = False
        try:
            entry = tracer.schedulers.by_id.get(id(scheduler))
            if entry is None or entry.ref() is not scheduler:
                entry = tracer.schedulers.get_or_add(scheduler)
            if thread.position >= 0 and thread.expected_codes[thread.position] == entry.code:
                thread.position += 1
            else:
                tracer.record_code(thread, entry.code)
        except Exception as error:  # as in ``Tracer.run_safely``
            tracer.fail(error)
        return result

    return step


def _entry(tracer: Tracer, index: int, scheduler: Any) -> SchedulerEntry:
    optimizer = getattr(scheduler, "optimizer", None)
    owner = -1 if optimizer is None else tracer.objects.optimizers.get_or_add(optimizer).index
    record = SchedulerRecord(
        index=index,
        kind=type(scheduler).__name__,
        optimizer=owner,
        options=_options(scheduler),
        # This runs after the first step of the scheduler.
        start=max(int(getattr(scheduler, "last_epoch", 0)) - 1, 0),
        end=_end(scheduler),
    )
    tracer.recorder.write("scheduler", record)
    code = tracer.event_code("schedule", index, owner)
    return SchedulerEntry(index, weakref.ref(scheduler), owner, code)


def _options(scheduler: Any) -> dict[str, float | int | bool | str | None]:
    """Return plain settings of a scheduler, without the state that changes at every step."""
    options: dict[str, float | int | bool | str | None] = {}
    for name, value in vars(scheduler).items():
        if name.startswith("_") or name in _STATE_ATTRIBUTES:
            continue
        if name in ("milestones", "base_lrs"):
            numbers = sorted(value.elements()) if hasattr(value, "elements") else list(value)
            if len(numbers) <= _MAX_LIST_LENGTH:
                options[name] = ", ".join(map(str, numbers))
        elif isinstance(value, float | int | bool | str | None):
            options[name] = value
    return options


def _end(scheduler: Any) -> int:
    """Return the scheduler steps until the rate is constant or turns; 0 if this is not known."""
    if isinstance(scheduler, SequentialLR):
        last = _end(scheduler._schedulers[-1])
        return int(scheduler._milestones[-1]) + last if last else 0
    if isinstance(scheduler, CosineAnnealingLR):
        return int(scheduler.T_max)
    if isinstance(scheduler, LinearLR | PolynomialLR):
        return int(scheduler.total_iters)
    if isinstance(scheduler, MultiStepLR):
        return max(map(int, scheduler.milestones), default=0)
    return int(scheduler.total_steps) if isinstance(scheduler, OneCycleLR) else 0
