"""Paused tracing, the baseline for measuring the overhead (TRACE-1)."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from sluice.trace.attach import paused_traces


def test_nothing_is_recorded_during_a_pause(trace_of):
    """A pause removes all patches and applies them again afterwards."""
    original = nn.Module.__call__, torch.optim.Optimizer.zero_grad, nn.functional.mse_loss
    hooks = len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)

    def run():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(9):
            with paused_traces() if step in (3, 4, 7) else nullcontext():
                functions = (
                    nn.Module.__call__,
                    torch.optim.Optimizer.zero_grad,
                    nn.functional.mse_loss,
                )
                num_hooks = len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)
                assert ((functions, num_hooks) == (original, hooks)) == (step in (3, 4, 7))
                optimizer.zero_grad()
                nn.functional.mse_loss(model(torch.ones(2, 4)), torch.ones(2, 1)).backward()
                optimizer.step()

    trace = trace_of(run)

    assert trace.end.steps == 6
    assert sum(sequence.count for sequence in trace.sequences) == 6
    assert (
        nn.Module.__call__,
        torch.optim.Optimizer.zero_grad,
        nn.functional.mse_loss,
    ) == original
    assert (len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)) == hooks
