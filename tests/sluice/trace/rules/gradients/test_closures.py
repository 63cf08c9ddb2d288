"""Faults inside the closure that a trainer passes to the optimizer step (TRACE-1, TRACE-16)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from sluice.trace.rules.library import judge

EPOCHS = 6


class Loop:
    """Runs epochs like a trainer: the closure of ``step`` does all the work of a batch."""

    def __init__(self, fault):
        self.fault = fault
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        schedule_steps = EPOCHS if self.has("short schedule") else EPOCHS * 20
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, schedule_steps)

    def has(self, fault):
        return self.fault == fault

    def closure(self, x, y):
        def run():
            hidden = self.model[1](self.model[0](x))
            out = self.model[2](hidden.detach() if self.has("detached") else hidden)
            loss = F.cross_entropy(out, y)
            if not self.has("never cleared"):
                self.optimizer.zero_grad()
            loss.backward()
            if self.has("cleared after backward"):
                self.optimizer.zero_grad()
            return loss

        return run

    def fit(self):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(320, 8, generator=generator)
        data = TensorDataset(x, x[:, :3].argmax(1))
        for _ in range(EPOCHS):
            for x, y in DataLoader(data, batch_size=16, shuffle=True, generator=generator):
                self.optimizer.step(self.closure(x, y))
                self.schedule.step()


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("none", None),
        ("short schedule", ("schedule ends early", "error")),
        ("never cleared", ("missing zero_grad", "confirm")),
        ("cleared after backward", ("misplaced zero_grad", "error")),
        ("detached", ("detached subgraph", "error")),
    ],
)
def test_a_fault_inside_a_closure_is_reported(trace_of, fault, expected):
    found = [(f.fault, f.severity) for f in judge(trace_of(lambda: Loop(fault).fit()))]

    assert [f for f in found if f[1] != "warning"][:1] == [expected] * (expected is not None)
