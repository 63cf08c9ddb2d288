"""Optimizer steps before the backward pass (TRACE-11)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.rules.gradients.step_before_backward import STEP_BEFORE_BACKWARD
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


@pytest.mark.parametrize(
    ("clears_before_step", "used_gradients"),
    [(True, "no new gradient"), (False, "the gradients of the previous batch")],
)
def test_the_finding_names_the_gradients_that_the_step_uses(
    trace_of, clears_before_step, used_gradients
):
    def program():
        model, x = nn.Linear(6, 1), random_rows(16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(8):
            if clears_before_step:
                optimizer.zero_grad()
            loss = F.mse_loss(model(x)[:, 0], x.sum(1))
            optimizer.step()
            if not clears_before_step:
                optimizer.zero_grad()
            loss.backward()

    (found,) = STEP_BEFORE_BACKWARD(trace_of(program))

    assert f"8 of 8 steps ran before backward(), with {used_gradients}." in found.what
