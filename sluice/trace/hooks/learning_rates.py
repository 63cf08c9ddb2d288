"""Records changes of learning rates."""

import operator
from collections import defaultdict

from sluice.trace.program_events import StepBegins, TraceBegan
from sluice.trace.recording.log_spaced_sampler import LogSpacedSampler
from sluice.trace.tracer_context import TracerContext

_GET_LR = operator.methodcaller("get", "lr")
_NUM_FIRST_CHANGES = 128
"""Number of first changes of an optimizer's learning rates that are all recorded. Later changes
are recorded at growing intervals."""
_JUMP_FACTOR = 2
"""A change is always recorded if the largest learning rate of the optimizer's parameter groups
grows by more than this factor."""


def watch_learning_rates(tracer: TracerContext) -> None:
    """Record changes of the learning rates of each optimizer, as found at fully recorded steps.

    Tensor learning rates are ignored.
    """
    samplers = defaultdict[int, LogSpacedSampler](lambda: LogSpacedSampler(_NUM_FIRST_CHANGES))
    tracer.bus.subscribe(TraceBegan, lambda _: samplers.clear())

    def record_change(begins: StepBegins) -> None:
        entry, optimizer = begins.entry, begins.optimizer
        rates = [*map(_GET_LR, optimizer.param_groups)]
        if rates == entry.learning_rates:
            return
        entry.learning_rates, previous_rates = rates, entry.learning_rates
        if not {*map(type, (*rates, *previous_rates))} <= {float, int}:
            return
        if samplers[entry.index].advance() or max(rates) > _JUMP_FACTOR * max(previous_rates):
            tracer.recorder.learning_rates.append((tracer.steps.last_step + 1, entry.index, rates))

    tracer.bus.subscribe(StepBegins, record_change)
