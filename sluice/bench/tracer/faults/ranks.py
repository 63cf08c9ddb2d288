"""Faults of data parallel training: ranks with wrong rows, and weights that diverge."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from sluice.bench.tracer.case import CaseSetup, FaultCase
from sluice.bench.tracer.data import digits, table
from sluice.bench.tracer.nets import classifier

_EPOCHS = 4
_BATCH_ROWS = 32
"""Number of rows per batch."""


def loader_without_sampler(setup: CaseSetup) -> list[nn.Module]:
    """Train data parallel; with the fault, the loader of each rank uses all rows."""
    torch.manual_seed(setup.seed)
    model = DistributedDataParallel(classifier(setup.net))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rows, _ = digits(setup.net, setup.seed)
    sampler: DistributedSampler[Any] | None = None
    if not setup.has_fault:
        sampler = DistributedSampler(rows, seed=setup.seed)
    loader = DataLoader(rows, batch_size=_BATCH_ROWS, shuffle=sampler is None, sampler=sampler)
    for epoch in range(_EPOCHS // 2):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return [model]


def sampler_seeds_differ(setup: CaseSetup) -> list[nn.Module]:
    """Train data parallel; with the fault, each rank shuffles with another seed."""
    torch.manual_seed(setup.seed)
    model = DistributedDataParallel(classifier(setup.net))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    rows, held_out = digits(setup.net, setup.seed)
    seed = 1234 * (setup.rank + 1) if setup.has_fault else 1234
    sampler: DistributedSampler[Any] = DistributedSampler(
        rows, shuffle=True, seed=seed, drop_last=True
    )
    loader = DataLoader(rows, batch_size=_BATCH_ROWS, sampler=sampler)
    for epoch in range(_EPOCHS):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():  # every rank validates on all rows
            for x, y in DataLoader(held_out, batch_size=180):
                F.cross_entropy(model(x), y)
    return [model]


def forward_past_the_wrapper(setup: CaseSetup) -> list[nn.Module]:
    """Train data parallel; with the fault, the forward pass bypasses the wrapper."""
    torch.manual_seed(setup.seed)
    rows, _ = table(setup.seed)
    net = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1))
    if setup.net == "gru":
        net = nn.Sequential(nn.Unflatten(1, (3, 4)), _LastState(), nn.Linear(16, 1))
    if setup.net == "cnn":
        net = nn.Sequential(
            nn.Unflatten(1, (1, 12)), nn.Conv1d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(80, 1)
        )
    ddp_model = DistributedDataParallel(net)
    forward_module = ddp_model.module if setup.has_fault else ddp_model
    optimizer = torch.optim.AdamW(ddp_model.parameters(), lr=3e-3)
    x_all, y_all = rows[setup.rank :: setup.num_ranks]
    generator = torch.Generator().manual_seed(setup.seed)
    for _ in range(_EPOCHS):
        order = torch.randperm(len(x_all), generator=generator)
        for begin in range(0, len(order), _BATCH_ROWS):
            batch_rows = order[begin : begin + _BATCH_ROWS]
            loss = F.mse_loss(forward_module(x_all[batch_rows]).squeeze(1), y_all[batch_rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [net]


class _LastState(nn.Module):
    """A GRU that returns only its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.GRU(4, 16, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.body(x)[0][:, -1]
        return output


RANK_CASES = (
    FaultCase(
        number=3,
        name="ranks see the same data",
        program=loader_without_sampler,
        correct_causes=frozenset({"missing distributed sampler"}),
        max_late_steps=1,
        nets=("mlp", "gru", "transformer"),
        num_ranks=2,
    ),
    FaultCase(
        number=4,
        name="ranks' sampler seeds differ",
        program=sampler_seeds_differ,
        correct_causes=frozenset({"sampler seed mismatch"}),
        max_late_steps=1,
        nets=("mlp", "cnn", "gru"),
        num_ranks=2,
    ),
    FaultCase(
        number=25,
        name="forward through .module",
        program=forward_past_the_wrapper,
        correct_causes=frozenset({"weights diverge across ranks"}),
        max_late_steps=1,
        nets=("mlp", "cnn", "gru"),
        num_ranks=2,
    ),
)
