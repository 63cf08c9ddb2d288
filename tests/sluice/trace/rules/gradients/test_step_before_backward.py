"""Optimizer steps before the backward pass (TRACE-11)."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.support.traced.small_programs import fault_severities, random_rows


def test_a_step_inside_a_gradient_hook_is_not_before_backward(trace_of):
    def program():
        model, x = nn.Linear(6, 1), random_rows(16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def update(_):
            optimizer.step()
            optimizer.zero_grad()

        model.weight.register_post_accumulate_grad_hook(update)
        for _ in range(8):
            F.mse_loss(model(x)[:, 0], x.sum(1)).backward()

    assert ("step before backward", "error") not in fault_severities(trace_of(program))
