"""Losses that do not decrease (TRACE-9)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.traced.small_programs import random_rows, root_causes


@pytest.mark.parametrize("has_teacher", [True, False])
def test_a_loss_with_moving_targets_is_not_reported(trace_of, has_teacher):
    def program():
        model, teacher, x = nn.Linear(6, 1), nn.Linear(6, 1), random_rows(64)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for i in range(80):
            with torch.no_grad():
                target = (teacher(x) if has_teacher else x[:, :1]) + 0.2 * i
            optimizer.zero_grad()
            F.mse_loss(model(x), target).backward()
            optimizer.step()

    found = {fault for fault, _, _ in root_causes(trace_of(program))}

    assert ("loss not decreasing" in found) is not has_teacher
