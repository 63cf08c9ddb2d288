"""Learning-rate schedulers."""

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

from sluice.trace.evidence.trace import SchedulerFact
from sluice.trace.inventory import SchedulerEntry
from sluice.trace.seams.checkpoints import watch_load
from sluice.trace.subjects import Registry
from sluice.trace.tracer import Tracer

_MOVING = frozenset({"last_epoch", "num_bad_epochs", "best", "T_cur", "verbose"})
_MOST_NUMBERS = 16


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
    if cls is not LRScheduler:
        watch_load(tracer, cls, "scheduler")


def _watched(tracer: Tracer, original: Callable[..., Any]) -> Callable[..., Any]:
    local = tracer.local

    @functools.wraps(original)
    def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        lane = local.lane
        # A scheduler makes a step of its own when it is built, and some are made of others.
        if not tracer.is_on or lane.in_schedule or getattr(scheduler, "_step_count", 1) == 0:
            return original(scheduler, *args, **kwargs)
        lane.in_schedule = True
        try:
            found = original(scheduler, *args, **kwargs)
        finally:
            lane.in_schedule = False
        try:
            entry = tracer.schedulers.by_id.get(id(scheduler))
            if entry is None or entry.ref() is not scheduler:
                entry = tracer.schedulers.find(scheduler)
            if lane.at >= 0 and lane.word[lane.at] == entry.code:
                lane.at += 1
            else:
                tracer.event(lane, entry.code)
        except Exception as error:  # as with ``guard``
            tracer.fail(error)
        return found

    return step


def _entry(tracer: Tracer, index: int, scheduler: Any) -> SchedulerEntry:
    optimizer = getattr(scheduler, "optimizer", None)
    owner = -1 if optimizer is None else tracer.inventory.optimizers.find(optimizer).index
    fact = SchedulerFact(
        index=index,
        kind=type(scheduler).__name__,
        optimizer=owner,
        options=_options(scheduler),
        # Asked after its first step.
        start=max(int(getattr(scheduler, "last_epoch", 0)) - 1, 0),
        end=_end(scheduler),
    )
    tracer.recorder.write("scheduler", fact)
    code = tracer.code("schedule", index, owner)
    return SchedulerEntry(index, weakref.ref(scheduler), owner, code)


def _options(scheduler: Any) -> dict[str, float | int | bool | str | None]:
    """Return the plain settings, without what moves with every step."""
    found: dict[str, float | int | bool | str | None] = {}
    for name, value in vars(scheduler).items():
        if name.startswith("_") or name in _MOVING:
            continue
        if name in ("milestones", "base_lrs"):
            numbers = sorted(value.elements()) if hasattr(value, "elements") else list(value)
            if len(numbers) <= _MOST_NUMBERS:
                found[name] = ", ".join(map(str, numbers))
        elif isinstance(value, float | int | bool | str | None):
            found[name] = value
    return found


def _end(scheduler: Any) -> int:
    """Return its own steps until the rate stands still or turns; 0 when that is not known."""
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
