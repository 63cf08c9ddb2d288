"""Records the settings of learning-rate schedulers."""

from typing import Any

from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    SequentialLR,
)

from sluice.trace.objects.object_tracker import SchedulerEntry
from sluice.trace.records.trace import SchedulerRecord
from sluice.trace.tracer_context import TracerContext

_STATE_ATTRIBUTES = frozenset({"last_epoch", "num_bad_epochs", "best", "T_cur", "verbose"})
"""Attributes of schedulers that are not settings; most change at every step."""
_MAX_LIST_LENGTH = 16
"""Maximum length of a list of milestones or base learning rates. A longer list is not recorded."""


def get_or_add_scheduler(
    tracer: TracerContext, scheduler: Any, *, has_stepped: bool
) -> SchedulerEntry:
    """Return the entry of a scheduler; record its settings if it is new.

    Args:
        tracer: Receives the record.
        scheduler: Scheduler of the program.
        has_stepped: Whether the scheduler has just made a step, which the caller records. The
            scheduler's ``last_epoch`` counts this step, but ``SchedulerRecord.start`` must not.
    """
    entry = tracer.objects.schedulers.get_or_add(scheduler)
    if entry.step_code < 0:
        record = SchedulerRecord(
            index=entry.index,
            kind=type(scheduler).__name__,
            optimizer=entry.optimizer,
            options=_options(scheduler),
            start=max(int(getattr(scheduler, "last_epoch", 0)) - has_stepped, 0),
            end=_decay_length(scheduler),
        )
        tracer.recorder.write("scheduler", record)
        entry.step_code = tracer.events.code("schedule", entry.index, entry.optimizer)
    return entry


def _options(scheduler: Any) -> dict[str, float | int | bool | str | None]:
    """Return the settings of a scheduler: single values, milestones and base learning rates."""
    options: dict[str, float | int | bool | str | None] = {}
    for name, value in vars(scheduler).items():
        if name.startswith("_") or name in _STATE_ATTRIBUTES:
            continue
        if name in ("milestones", "base_lrs"):
            list_values = sorted(value.elements()) if hasattr(value, "elements") else list(value)
            if len(list_values) <= _MAX_LIST_LENGTH:
                options[name] = ", ".join(map(str, list_values))
        elif isinstance(value, float | int | bool | str | None):
            options[name] = value
    return options


def _decay_length(scheduler: Any) -> int:
    """Return the number of steps until the learning rate stays constant or rises; 0 if unknown."""
    if isinstance(scheduler, SequentialLR):
        last_length = _decay_length(scheduler._schedulers[-1])
        return int(scheduler._milestones[-1]) + last_length if last_length else 0
    if isinstance(scheduler, CosineAnnealingLR):
        return int(scheduler.T_max)
    if isinstance(scheduler, LinearLR | PolynomialLR):
        return int(scheduler.total_iters)
    if isinstance(scheduler, MultiStepLR):
        return max(map(int, scheduler.milestones), default=0)
    return int(scheduler.total_steps) if isinstance(scheduler, OneCycleLR) else 0
