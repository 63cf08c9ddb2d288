"""Faults of gradient scalers."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from sluice.bench.tracer.case import CaseSetup, FaultCase
from sluice.bench.tracer.data import digits
from sluice.bench.tracer.nets import classifier


class _ScaledOutput(nn.Module):
    """A network whose outputs are multiplied by a learned factor, which starts at 1."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.log_scale = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.body(x) * self.log_scale.exp()
        return output


def infinite_gradient(setup: CaseSetup) -> list[nn.Module]:
    """Train with a gradient scaler and a penalty that takes a square root at 0."""
    torch.manual_seed(setup.seed)
    model = _ScaledOutput(classifier(setup.net))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    loader = DataLoader(digits(setup.net, setup.seed)[0], batch_size=64, shuffle=True)
    epsilon = 0.0 if setup.has_fault else 1e-6
    for _ in range(4):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y) + 0.01 * (model.log_scale**2 + epsilon).sqrt().sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return [model]


SCALING_CASES = (
    FaultCase(
        number=26,
        name="gradient scaler skips every step",
        program=infinite_gradient,
        correct_causes=frozenset({"gradient scaler skips steps", "non-finite gradient"}),
        max_late_steps=10,
        nets=("mlp", "cnn", "gru", "transformer"),
    ),
)
