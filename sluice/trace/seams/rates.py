"""Learning rates, when they change."""

import operator
from typing import Any

from sluice.trace.evidence.surroundings import RateFact
from sluice.trace.inventory import OptimizerEntry
from sluice.trace.recorder import Thin
from sluice.trace.tracer import Tracer

_RATE = operator.methodcaller("get", "lr")
_ROWS = 128
"""Changes of one optimizer before every second one is left out, then three of four, and so on."""


def watch_rates(tracer: Tracer) -> None:
    """Record the rates that each optimizer steps with; those on a device are not read."""
    known: dict[int, tuple[list[float], Thin]] = {}
    tracer.on_begin.append(known.clear)

    def look(entry: OptimizerEntry, optimizer: Any) -> None:
        rates = [*map(_RATE, optimizer.param_groups)]
        last = known.get(entry.index)
        if last is not None and last[0] == rates:
            return
        thin = Thin(_ROWS) if last is None else last[1]
        known[entry.index] = rates, thin
        if thin.takes_next() and all(type(rate) in (float, int) for rate in rates):
            fact = RateFact(
                step=tracer.steps + 1, optimizer=entry.index, rates=tuple(map(float, rates))
            )
            tracer.recorder.write("rate", fact)

    tracer.before_step.append(look)
