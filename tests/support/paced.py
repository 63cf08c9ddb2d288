"""Programs with a simulated clock, for tests of the measurement of tracing overhead."""

import os

import torch
from torch import nn

from sluice.trace.attach import active_tracer

_now_s = [0.0]
_UNTRACED_CALL = nn.Module.__call__


def clock():
    """Return the simulated time [s]."""
    return _now_s[0]


def slower_when_traced(steps, tick):
    """Take 1 s per step, or 1.25 s while the hooks of the tracer are installed."""
    return _train(steps, tick, weight=1.0)


def different_weights_when_traced(steps, tick):
    """Return a model whose weights differ when traced."""
    return _train(steps, tick, weight=2.0 if active_tracer() else 1.0)


def dies_after_some_steps(steps, tick):
    """End the process at step 150."""
    return _train(steps, tick, weight=1.0, exit_step=150)


def _train(steps, tick, *, weight, exit_step=None):
    model = nn.Linear(2, 1, bias=False)
    torch.nn.init.constant_(model.weight, weight)
    for step in range(steps):
        _now_s[0] += 1.0 if nn.Module.__call__ is _UNTRACED_CALL else 1.25
        tick()
        if step == exit_step:
            os._exit(3)
    return [model]
