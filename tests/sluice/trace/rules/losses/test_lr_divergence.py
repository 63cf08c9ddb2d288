"""Losses that diverge from the start (TRACE-9)."""

import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.diagnosis import diagnose
from sluice.trace.rules.library import judge
from tests.support.traced.unusual_models import rows


def root_cause_list(trace):
    return [(d.fault, d.finding.severity, d.step) for d in diagnose(judge(trace))]


def test_an_exploding_loss_is_one_cause(trace_of):
    def too_fast():
        model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
        for _ in range(30):
            x, y = rows()
            optimizer.zero_grad()
            F.mse_loss(model(x)[:, 0], 10.0 * y).backward()
            optimizer.step()

    ((fault, severity, step), *others) = root_cause_list(trace_of(too_fast))

    assert (fault, severity) == ("learning rate too high", "error")
    assert step <= 4
    assert not [other for other in others if other[1] == "error"]
