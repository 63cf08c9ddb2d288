"""Steps that change no weight (TRACE-9)."""

import torch
from torch.nn import functional as F

from sluice.trace.diagnosis import diagnose
from sluice.trace.rules.library import judge
from tests.support.traced.unusual_models import mlp, rows


def root_cause_list(trace):
    return [(d.fault, d.finding.severity, d.step) for d in diagnose(judge(trace))]


def test_unchanged_weights_are_reported(trace_of):
    def program():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-30)
        for _ in range(12):
            x, y = rows()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    assert ("weights not updating", "error", 1) in root_cause_list(trace_of(program))
