"""Modules that a network calls but does not register (TRACE-7)."""

import pytest
import torch
from torch import nn

from sluice.trace.rules.library import judge
from tests.support.traced.small_programs import random_rows, train_step


@pytest.mark.parametrize(
    ("num_hidden", "has_bias", "count"),
    [
        (1, False, "1 unregistered module (Linear), with gradients for 1 parameter that"),
        (2, True, "2 unregistered modules (Linear), with gradients for 4 parameters that"),
    ],
)
def test_unregistered_modules_and_their_parameters_are_counted(
    trace_of, num_hidden, has_bias, count
):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = [nn.Linear(6, 6, bias=has_bias) for _ in range(num_hidden)]
            self.out = nn.Linear(6, 1)

        def forward(self, x):
            for layer in self.hidden:
                x = layer(x).tanh()
            return self.out(x)

    def program():
        model, x = Net(), random_rows(16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            train_step(optimizer, (model(x)[:, 0] - x.sum(1)).square().mean())

    (found,) = [f for f in judge(trace_of(program)) if f.fault == "unregistered module"]

    assert found.what == f"Net calls {count} no optimizer contains."
