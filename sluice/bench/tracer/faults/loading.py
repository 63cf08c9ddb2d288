"""Faults of loaders: random numbers shared by workers, the same order in every epoch."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset, get_worker_info

from sluice.bench.tracer.case import CaseSetup, FaultCase
from sluice.bench.tracer.data import digits
from sluice.bench.tracer.nets import classifier

_EPOCHS = 3
_BATCH_ROWS = 48
"""Number of rows per batch."""


class _NoisyRows(Dataset[tuple[Tensor, Tensor]]):
    """Rows plus a little noise from a generator that belongs to the dataset."""

    def __init__(self, rows: TensorDataset, seed: int) -> None:
        self.rows = rows
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.rows[index]
        return x + 0.05 * torch.randn(x.shape, generator=self.generator), y


def _seed_worker(_: int) -> None:
    info = get_worker_info()
    assert info is not None
    dataset: Any = info.dataset
    dataset.generator.manual_seed(info.seed)


def noise_in_workers(setup: CaseSetup) -> list[nn.Module]:
    """Add noise to rows in two workers; with the fault, both use copies of one generator."""
    torch.manual_seed(setup.seed)
    model = classifier(setup.net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(
        _NoisyRows(digits(setup.net, setup.seed)[0], setup.seed),
        batch_size=_BATCH_ROWS,
        shuffle=True,
        num_workers=2,
        worker_init_fn=None if setup.has_fault else _seed_worker,
        multiprocessing_context="fork",  # as usual on Linux, also if this process was not forked
    )
    for _ in range(_EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return [model]


def no_set_epoch(setup: CaseSetup) -> list[nn.Module]:
    """Train with a DistributedSampler; with the fault, ``set_epoch`` is never called."""
    torch.manual_seed(setup.seed)
    model = classifier(setup.net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rows, held_out = digits(setup.net, setup.seed)
    sampler: DistributedSampler[Any] = DistributedSampler(
        rows, num_replicas=setup.num_ranks, rank=setup.rank, shuffle=True, seed=setup.seed
    )
    loader = DataLoader(rows, batch_size=_BATCH_ROWS, sampler=sampler)
    for epoch in range(_EPOCHS):
        if not setup.has_fault:
            sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, y in DataLoader(held_out, batch_size=120):
                F.cross_entropy(model(x), y)
    return [model]


LOADING_CASES = (
    FaultCase(
        number=1,
        name="workers copy one generator",
        program=noise_in_workers,
        correct_causes=frozenset({"duplicate worker seeds"}),
        max_late_steps=1,
        nets=("mlp", "cnn", "gru"),
    ),
    FaultCase(
        number=2,
        name="no set_epoch",
        program=no_set_epoch,
        correct_causes=frozenset({"repeated epoch order"}),
        max_late_steps=1,
        nets=("mlp", "cnn", "transformer"),
        starts_at=31,  # the first step of the second epoch
    ),
)
