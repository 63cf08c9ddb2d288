"""Non-finite inputs (TRACE-2)."""

import pytest
import torch
from torch import nn

from tests.support.traced.small_programs import fault_severities, random_rows, train_step


@pytest.mark.parametrize(("is_imputed", "severity"), [(False, "error"), (True, "warning")])
def test_an_infinite_input_is_an_error_if_it_reaches_the_output(trace_of, is_imputed, severity):
    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number in range(12):
            x = random_rows(8, seed=number)
            if number == 5:
                x[3, 2] = -torch.inf
            inputs = x.nan_to_num(neginf=0.0) if is_imputed else x
            # The tracer inspects the inputs of networks, not the tensors they are computed from.
            out = ImputingModel(model)(x) if is_imputed else model(inputs)
            loss = out.square().mean()
            if loss.isfinite():
                train_step(optimizer, loss)

    assert ("non-finite input", severity) in fault_severities(trace_of(program))


class ImputingModel(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.nan_to_num(neginf=0.0))
