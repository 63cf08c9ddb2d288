"""The measurement of the tracer's cost (TRACE-1)."""

from itertools import count

import torch
from torch import nn

from sluice.trace.attach import _active
from sluice.trace.benchmark.overhead import measure_overhead
from sluice.trace.settings import TraceSettings


def program(slow):
    """Return a program that moves a clock by one at each step, and by more when it is traced."""
    now = [0.0]

    def run(steps, tick):
        model = nn.Linear(2, 1)
        nn.init.ones_(model.weight)
        nn.init.zeros_(model.bias)
        for _ in range(steps):
            now[0] += slow if _active else 1.0
            tick()
        return [model]

    return run, lambda: now[0]


def test_the_ratio_is_that_of_the_times_of_steps(tmp_path):
    run, clock = program(slow=1.25)
    (found,) = measure_overhead(
        tmp_path, rounds=2, programs={"one": run}, settings=TraceSettings(), clock=clock
    )

    assert found.ratio == 1.25
    assert found.has_same_weights
    assert found.plain_us == 1e6


def test_other_weights_are_seen(tmp_path):
    numbers = count()

    def run(steps, tick):
        for _ in range(steps):
            tick()
        model = nn.Linear(2, 1)
        nn.init.constant_(model.weight, next(numbers))
        return [model]

    ticks = count()
    (found,) = measure_overhead(
        tmp_path,
        rounds=1,
        programs={"one": run},
        settings=TraceSettings(),
        clock=lambda: float(next(ticks)),
    )

    assert not found.has_same_weights
    assert torch.get_num_threads() >= 1
