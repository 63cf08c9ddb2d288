"""Loader workers that draw the same random numbers (TRACE-6)."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from sluice.trace.rules.data.duplicate_worker_seeds import DUPLICATE_WORKER_SEEDS
from tests.support.traced.small_programs import (
    fault_severities,
    random_rows,
    seeded_generator,
    train_step,
)


class NumpyNoise(Dataset):
    """Rows of random numbers from the global generator of NumPy."""

    def __len__(self):
        return 24

    def __getitem__(self, row):
        # As in older code, instead of numpy.random.Generator.
        return torch.tensor(np.random.normal(size=6), dtype=torch.float32)  # noqa: NPY002


@pytest.mark.slow
@pytest.mark.parametrize("has_equal_seeds", [True, False])
def test_workers_with_equal_numpy_seeds_are_reported(trace_of, has_equal_seeds):
    def seed(_):
        np.random.seed(7 if has_equal_seeds else torch.initial_seed() % 2**32)  # noqa: NPY002

    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = DataLoader(
            NumpyNoise(),
            batch_size=4,
            num_workers=2,
            worker_init_fn=seed,
            multiprocessing_context="fork",
        )
        for _ in range(2):
            for x in loader:
                train_step(optimizer, (model(x)[:, 0] - x.sum(1)).square().mean())

    trace = trace_of(program)

    assert fault_severities(trace) == (
        {("duplicate worker seeds", "error")} if has_equal_seeds else set()
    )
    for finding in DUPLICATE_WORKER_SEEDS(trace):
        assert "the program seeds it again with the same number" in finding.cause
        assert "Do not seed this generator" in finding.fix


class NoisyCollate:
    """Adds noise from a generator that every worker copies."""

    def __init__(self):
        self.generator = seeded_generator()

    def __call__(self, rows):
        x = torch.stack(rows)
        return x + torch.randn(x.shape, generator=self.generator)


@pytest.mark.slow
def test_a_generator_of_collate_fn_is_not_attributed_to_the_dataset(trace_of):
    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = DataLoader(
            list(random_rows(32)),
            batch_size=4,
            num_workers=2,
            collate_fn=NoisyCollate(),
            multiprocessing_context="fork",
        )
        for x in loader:
            train_step(optimizer, model(x).square().mean())

    (finding,) = DUPLICATE_WORKER_SEEDS(trace_of(program))

    assert "collate_fn contains a generator (collate_fn.generator)" in finding.what
    assert "worker_init_fn" in finding.fix


class Stream(IterableDataset):
    """Random rows, or rows of a table in random order."""

    def __init__(self, kind):
        self.kind, self.generator, self.table = kind, seeded_generator(), random_rows(64)

    def __iter__(self):
        info = get_worker_info()
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        if self.kind == "seeded":
            self.generator.manual_seed(info.seed)
        if self.kind == "sharded":  # all workers draw one order and yield different rows of it
            for row in torch.randperm(64, generator=self.generator)[worker::num_workers]:
                yield self.table[row]
        elif self.kind == "all rows":
            yield from self.table
        elif self.kind == "constant":
            yield from torch.ones(24, 6)
        else:
            for _ in range(24):
                yield torch.randn(6, generator=self.generator)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "is_reported"),
    [
        ("random", True),
        ("all rows", True),
        ("seeded", False),
        ("sharded", False),
        ("constant", False),
    ],
)
def test_stream_workers_that_yield_the_same_rows_are_reported(trace_of, kind, is_reported):
    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(2):
            for x in DataLoader(Stream(kind), batch_size=4, num_workers=2):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()

    found = DUPLICATE_WORKER_SEEDS(trace_of(program))

    assert [(f.fault, f.severity, f.step) for f in found] == (
        [("duplicate worker seeds", "error", 1)] if is_reported else []
    )
    assert all("2 of 2 workers" in f.what for f in found)
