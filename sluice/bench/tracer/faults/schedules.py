"""Faults of learning-rate schedules."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    SequentialLR,
    StepLR,
)
from torch.utils.data import DataLoader

from sluice.bench.tracer.case import CaseSetup, FaultCase
from sluice.bench.tracer.data import digits
from sluice.bench.tracer.nets import classifier

_EPOCHS = 8
_BATCH_ROWS = 96
"""Number of rows per batch."""


def _schedule(setup: CaseSetup, optimizer: torch.optim.Optimizer) -> LRScheduler:
    """Return a schedule for one step per epoch. The kind of schedule depends on the network."""
    if setup.net == "cnn":
        return MultiStepLR(optimizer, milestones=[4, 6], gamma=0.1)
    if setup.net == "gru":
        return StepLR(optimizer, step_size=2, gamma=0.5)
    if setup.net == "transformer":
        linear_warmup = LinearLR(optimizer, start_factor=0.5, total_iters=2)
        return SequentialLR(
            optimizer, [linear_warmup, CosineAnnealingLR(optimizer, _EPOCHS - 2)], milestones=[2]
        )
    return CosineAnnealingLR(optimizer, T_max=_EPOCHS)


def schedule_stepped_per_batch(setup: CaseSetup) -> list[nn.Module]:
    """Train with a schedule over epochs; with the fault, it is stepped after every batch."""
    torch.manual_seed(setup.seed)
    model = classifier(setup.net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    scheduler = _schedule(setup, optimizer)
    loader = DataLoader(digits(setup.net, setup.seed)[0], batch_size=_BATCH_ROWS, shuffle=True)
    for _ in range(_EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if setup.has_fault:
                scheduler.step()
        if not setup.has_fault:
            scheduler.step()
    return [model]


def integer_division_warmup(setup: CaseSetup) -> list[nn.Module]:
    """Train with a warmup; with the fault, an integer division makes its learning rates 0."""
    torch.manual_seed(setup.seed)
    model = classifier(setup.net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    rows, _ = digits(setup.net, setup.seed)
    warmup_steps = 40

    def factor(step: int) -> float:
        return min(step // warmup_steps if setup.has_fault else step / warmup_steps, 1.0)

    scheduler = LambdaLR(optimizer, factor)
    generator = torch.Generator().manual_seed(setup.seed)
    for _ in range(120):
        batch_rows = torch.randint(len(rows), (64,), generator=generator)
        x, y = rows[batch_rows]
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    return [model]


SCHEDULE_CASES = (
    FaultCase(
        number=36,
        name="per-epoch schedule stepped per batch",
        program=schedule_stepped_per_batch,
        correct_causes=frozenset({"schedule ends early"}),
        max_late_steps=1,
        nets=("mlp", "cnn", "gru", "transformer"),
        starts_at=2,  # the first optimizer step after a step of the schedule
    ),
    FaultCase(
        number=37,
        name="warmup by integer division",
        program=integer_division_warmup,
        correct_causes=frozenset({"learning rate stays zero"}),
        max_late_steps=1,
        nets=("mlp", "cnn", "gru", "transformer"),
    ),
)
