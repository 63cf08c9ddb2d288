"""A trainer that hands its batch over as a closure has the same faults (TRACE-1, TRACE-16)."""

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
        lasts = EPOCHS if self.is_("schedule") else EPOCHS * 20
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, lasts)

    def is_(self, fault):
        return self.fault == fault

    def closure(self, x, y):
        def run():
            hidden = self.model[1](self.model[0](x))
            out = self.model[2](hidden.detach() if self.is_("cut") else hidden)
            loss = F.cross_entropy(out, y)
            if not self.is_("carried"):
                self.optimizer.zero_grad()
            loss.backward()
            if self.is_("cleared"):
                self.optimizer.zero_grad()
            return loss

        return run

    def fit(self):
        draws = torch.Generator().manual_seed(0)
        x = torch.randn(320, 8, generator=draws)
        data = TensorDataset(x, x[:, :3].argmax(1))
        for _ in range(EPOCHS):
            for x, y in DataLoader(data, batch_size=16, shuffle=True, generator=draws):
                self.optimizer.step(self.closure(x, y))
                self.schedule.step()


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("none", None),
        ("schedule", ("schedule ends early", "error")),
        ("carried", ("missing zero_grad", "confirm")),
        ("cleared", ("misplaced zero_grad", "error")),
        ("cut", ("detached subgraph", "error")),
    ],
)
def test_a_fault_inside_a_closure_is_reported(trace_of, fault, expected):
    found = [(f.fault, f.severity) for f in judge(trace_of(lambda: Loop(fault).fit()))]

    assert [f for f in found if f[1] != "warning"][:1] == [expected] * (expected is not None)
