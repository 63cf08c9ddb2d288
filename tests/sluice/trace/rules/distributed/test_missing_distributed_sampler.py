"""Ranks that train on the same rows (TRACE-5)."""

import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Subset,
    TensorDataset,
)

from sluice.trace.rules.distributed.missing_distributed_sampler import MISSING_DISTRIBUTED_SAMPLER
from tests.support.traced.small_programs import random_rows, train_step

FAULT = "missing distributed sampler"
ROWS = TensorDataset(random_rows(200))


def train_on(batches):
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in batches:
        train_step(optimizer, model(x).square().mean())


def make_program(loader_of):
    """Return a program for a rank that trains on ``loader_of(rank)``."""
    return lambda rank: train_on(x for (x,) in loader_of(rank))


def load_all_rows(_):
    return DataLoader(ROWS, batch_size=50, shuffle=True)


@pytest.mark.parametrize(("is_wrapped", "severity"), [(True, "error"), (False, "confirm")])
def test_ranks_that_load_all_rows_are_reported(rank_traces_of, is_wrapped, severity):
    traces = rank_traces_of(make_program(load_all_rows), num_ranks=3, is_wrapped=is_wrapped)

    (found,) = MISSING_DISTRIBUTED_SAMPLER(traces)

    assert (found.fault, found.severity, found.step) == (FAULT, severity, 1)
    assert found.evidence == {"num_shared": 200, "num_rows": 200, "num_ranks": 3}
    assert found.what.endswith("are also on another rank, in the same order.")


def test_the_order_of_the_same_rows_does_not_matter(rank_traces_of):
    def load(rank):
        torch.manual_seed(rank)
        return load_all_rows(rank)

    (found,) = MISSING_DISTRIBUTED_SAMPLER(rank_traces_of(make_program(load)))

    assert found.what.endswith("200 of 200 rows that one rank trains on are also on another rank.")


@pytest.mark.parametrize(("num_shared", "num_findings"), [(90, 1), (89, 0)])
def test_ranks_must_share_nine_in_ten_rows(rank_traces_of, num_shared, num_findings):
    def load(rank):
        begin = rank * (100 - num_shared)
        return DataLoader(Subset(ROWS, range(begin, begin + 100)), batch_size=50)

    found = MISSING_DISTRIBUTED_SAMPLER(rank_traces_of(make_program(load)))

    assert [f.evidence["num_shared"] for f in found] == [num_shared] * num_findings


@pytest.mark.parametrize(("num_rows", "num_findings"), [(7, 0), (8, 1)])
def test_few_equal_rows_are_not_reported(rank_traces_of, num_rows, num_findings):
    def load(_):
        return DataLoader(Subset(ROWS, range(num_rows)), batch_size=8)

    assert len(MISSING_DISTRIBUTED_SAMPLER(rank_traces_of(make_program(load)))) == num_findings


@pytest.mark.parametrize(("num_steps", "num_findings"), [(2, 0), (3, 1)])
def test_equal_inputs_without_a_loader_are_reported(rank_traces_of, num_steps, num_findings):
    def program(_):
        train_on([random_rows(16, seed=number) for number in range(num_steps)])

    found = MISSING_DISTRIBUTED_SAMPLER(rank_traces_of(program))

    assert [(f.fault, f.severity, f.step) for f in found] == [(FAULT, "error", 1)] * num_findings
    assert [f.evidence["num_steps"] for f in found] == [num_steps] * num_findings


def share_some_inputs(rank):
    """Each rank has the same first batches, then its own batch."""
    train_on([random_rows(16, seed=seed) for seed in (1, 2, 3, 4 + rank)])


def divide_rows(rank):
    train_on(x for (x,) in DataLoader(Subset(ROWS, range(rank, 200, 2)), batch_size=50))


def use_a_sampler(rank):
    sampler = DistributedSampler(ROWS, num_replicas=2, rank=rank, seed=3)
    train_on(x for (x,) in DataLoader(ROWS, batch_size=50, sampler=sampler))


def sample_with_replacement(rank):
    generator = torch.Generator().manual_seed(rank)
    sampler = RandomSampler(ROWS, replacement=True, generator=generator)
    train_on(x for (x,) in DataLoader(ROWS, batch_size=50, sampler=sampler))


def augment_rows(rank):
    generator = torch.Generator().manual_seed(rank)

    def collate(items):
        x = torch.stack([x for (x,) in items])
        return (x + torch.randn(x.shape, generator=generator),)

    train_on(x for (x,) in DataLoader(ROWS, batch_size=50, shuffle=True, collate_fn=collate))


def evaluate_on_the_same_rows(rank):
    divide_rows(rank)
    with torch.no_grad():
        for (x,) in DataLoader(TensorDataset(random_rows(60, seed=9)), batch_size=20):
            nn.Linear(6, 1)(x)


@pytest.mark.parametrize(
    "program",
    [
        share_some_inputs,
        divide_rows,
        use_a_sampler,
        sample_with_replacement,
        augment_rows,
        evaluate_on_the_same_rows,
    ],
    ids=lambda program: program.__name__,
)
def test_ranks_with_different_rows_are_not_reported(rank_traces_of, program):
    assert MISSING_DISTRIBUTED_SAMPLER(rank_traces_of(program)) == ()
