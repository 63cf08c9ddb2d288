"""Parameters that belong to no optimizer (TRACE-9)."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.support.traced.small_programs import found_faults, labeled_rows, train_step


def test_an_optimizer_that_never_steps_does_not_hide_an_unoptimized_head(trace_of):
    def program():
        x, y = labeled_rows(256)
        idle_model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        idle_optimizer = torch.optim.SGD(idle_model.parameters(), lr=0.1)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
        for indices in torch.arange(256).split(16):
            train_step(optimizer, F.cross_entropy(model(x[indices]), y[indices]))
        assert len(idle_optimizer.param_groups) == 1

    assert ("parameters not optimized", "confirm") in found_faults(trace_of(program))
