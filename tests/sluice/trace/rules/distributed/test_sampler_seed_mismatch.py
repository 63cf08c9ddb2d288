"""Ranks whose shards overlap (TRACE-5)."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from sluice.trace.rules.distributed.sampler_seed_mismatch import SAMPLER_SEED_MISMATCH
from tests.support.traced.small_programs import random_rows, train_step

FAULT = "sampler seed mismatch"
ROWS = TensorDataset(random_rows(97))


def train_on(loader):
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (x,) in loader:
        train_step(optimizer, model(x).square().mean())


def seeded_sampler(rank, seed):
    return DistributedSampler(ROWS, num_replicas=2, rank=rank, seed=seed, drop_last=True)


@pytest.mark.parametrize(("is_wrapped", "severity"), [(True, "error"), (False, "confirm")])
def test_samplers_with_different_seeds_are_reported(rank_traces_of, is_wrapped, severity):
    def program(rank):
        train_on(DataLoader(ROWS, batch_size=16, sampler=seeded_sampler(rank, seed=5 + rank)))

    (found,) = SAMPLER_SEED_MISMATCH(rank_traces_of(program, is_wrapped=is_wrapped))

    shards = [set(seeded_sampler(rank, seed=5 + rank)) for rank in range(2)]
    num_shared, num_missing = len(shards[0] & shards[1]), 97 - len(shards[0] | shards[1])
    assert (found.fault, found.severity, found.step) == (FAULT, severity, 1)
    assert found.evidence == {
        "num_shared": num_shared,
        "num_rows": 48,
        "num_missing": num_missing,
    }
    assert f"; {num_missing} of 97 compared rows are on no rank." in found.what
    assert found.what.endswith("The seeds of the samplers are 5, 6.")


def load_overlapping_shards(rank, num_shared):
    """Return a loader of 48 rows, of which the other rank has ``num_shared``."""
    begin = rank * (48 - num_shared)
    return DataLoader(Subset(ROWS, range(begin, begin + 48)), batch_size=16)


@pytest.mark.parametrize(
    ("num_shared", "num_findings"),
    # Fewer than 8 shared rows are normal. 44 of 48 rows are copies, which another rule reports.
    [(7, 0), (8, 1), (43, 1), (44, 0)],
)
def test_shards_that_overlap_without_being_copies_are_reported(
    rank_traces_of, num_shared, num_findings
):
    traces = rank_traces_of(lambda rank: train_on(load_overlapping_shards(rank, num_shared)))

    found = SAMPLER_SEED_MISMATCH(traces)

    assert [f.evidence["num_shared"] for f in found] == [num_shared] * num_findings
    assert not [f for f in found if "seeds" in f.what]


def use_one_seed(rank):
    train_on(DataLoader(ROWS, batch_size=16, sampler=seeded_sampler(rank, seed=5)))


def repeat_a_row_to_fill_the_shards(rank):
    """Both shards have 49 of the 97 rows, so one row is on both ranks."""
    sampler = DistributedSampler(ROWS, num_replicas=2, rank=rank, seed=5)
    train_on(DataLoader(ROWS, batch_size=16, sampler=sampler))


def load_all_rows(_):
    train_on(DataLoader(ROWS, batch_size=16, shuffle=True))


def augment_rows(rank):
    generator = torch.Generator().manual_seed(rank)

    def collate(items):
        x = torch.stack([x for (x,) in items])
        return (x + torch.randn(x.shape, generator=generator),)

    sampler = seeded_sampler(rank, seed=5 + rank)
    train_on(DataLoader(ROWS, batch_size=16, sampler=sampler, collate_fn=collate))


@pytest.mark.parametrize(
    "program",
    [use_one_seed, repeat_a_row_to_fill_the_shards, load_all_rows, augment_rows],
    ids=lambda program: program.__name__,
)
def test_shards_of_one_order_are_not_reported(rank_traces_of, program):
    assert SAMPLER_SEED_MISMATCH(rank_traces_of(program)) == ()
