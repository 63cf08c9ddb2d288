"""Mean losses of evaluation passes (TRACE-16)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F


def test_a_batchmean_loss_is_averaged_over_batches_without_another_division(trace_of):
    losses = []

    def program():
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        F.mse_loss(model(torch.randn(8, 4)), torch.zeros(8, 3)).backward()
        optimizer.step()
        with torch.no_grad():
            for num_rows in (8, 2):
                log_shares = model(torch.randn(num_rows, 4)).log_softmax(1)
                shares = torch.rand(num_rows, 3).softmax(1)
                losses.append(float(F.kl_div(log_shares, shares, reduction="batchmean")))

    (evaluation,) = trace_of(program).evaluations
    assert evaluation.mean == pytest.approx(sum(losses) / 2)
