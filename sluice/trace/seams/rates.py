"""Learning rates, when they change."""

import operator
from typing import Any

from sluice.trace.inventory import OptimizerEntry
from sluice.trace.recorder import Thin
from sluice.trace.tracer import Tracer

_RATE = operator.methodcaller("get", "lr")
_ROWS = 128
"""Changes of one optimizer before every second one is left out, then three of four, and so on."""
_JUMP = 2
"""So many times what it was is told in any case."""


def watch_rates(tracer: Tracer) -> None:
    """Record the rates that each optimizer steps with; those on a device are not read."""
    thins: dict[int, Thin] = {}
    tracer.on_begin.append(thins.clear)

    def look(entry: OptimizerEntry, optimizer: Any) -> None:
        rates = [*map(_RATE, optimizer.param_groups)]
        if rates == entry.rates:
            return
        entry.rates, before = rates, entry.rates
        if entry.index not in thins:
            thins[entry.index] = Thin(_ROWS)
        if not {*map(type, (*rates, *before))} <= {float, int}:
            return
        if thins[entry.index].takes_next() or max(rates) > _JUMP * max(before):
            tracer.recorder.rates.append((tracer.steps + 1, entry.index, rates))

    tracer.before_step.append(look)
