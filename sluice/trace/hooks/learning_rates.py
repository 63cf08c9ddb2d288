"""Records changes of learning rates."""

import operator
from typing import Any

from sluice.trace.object_tracker import OptimizerEntry
from sluice.trace.recorder import LogSpacedSampler
from sluice.trace.tracer import Tracer

_GET_LR = operator.methodcaller("get", "lr")
_MAX_DENSE_ROWS = 128
"""Changes of one optimizer that are all recorded; later ones are decimated by powers of two."""
_JUMP_FACTOR = 2
"""Increases of the learning rate beyond this factor are always recorded."""


def watch_learning_rates(tracer: Tracer) -> None:
    """Record the learning rates of each optimizer step. Rates on a device are not read."""
    samplers: dict[int, LogSpacedSampler] = {}
    tracer.on_begin.append(samplers.clear)

    def record_change(entry: OptimizerEntry, optimizer: Any) -> None:
        rates = [*map(_GET_LR, optimizer.param_groups)]
        if rates == entry.learning_rates:
            return
        entry.learning_rates, before = rates, entry.learning_rates
        if entry.index not in samplers:
            samplers[entry.index] = LogSpacedSampler(_MAX_DENSE_ROWS)
        if not {*map(type, (*rates, *before))} <= {float, int}:
            return
        if samplers[entry.index].keeps_next() or max(rates) > _JUMP_FACTOR * max(before):
            tracer.recorder.learning_rates.append((tracer.steps + 1, entry.index, rates))

    tracer.before_step.append(record_change)
