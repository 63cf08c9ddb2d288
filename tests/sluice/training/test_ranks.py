"""TRAIN-1: how a batch is split over the ranks of a data-parallel training."""

import dataclasses
import math

import pytest
import torch

from sluice.base.errors import ContractError
from sluice.training.accumulation import count_rows
from sluice.training.batches import Batches
from sluice.training.fold_run import find_finished_member, train_fold_run
from sluice.training.ranks import SINGLE_PROCESS, RankShard
from tests.support.rank_jobs import examples


@pytest.mark.parametrize("num_rows", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_ranks_split_the_rows_evenly_and_in_order(num_rows, world):
    rows = torch.arange(num_rows)
    splits = [RankShard(rank=rank, world_size=world) for rank in range(world)]
    shares = [split.share(rows, count_rows) for split in splits]
    both = list(zip(splits, shares, strict=True))
    taken = [split.local_rows(rows).tolist() for split, share in both if share]

    assert [row for own in taken for row in own] == rows.tolist()
    assert max(map(len, taken)) - min(map(len, taken)) <= 1
    assert shares == pytest.approx(
        [len(split.local_rows(rows)) / num_rows if share else 0 for split, share in both]
    )
    # Every rank has at least one row, because all ranks take part in every step.
    assert all(len(split.local_rows(rows)) >= 1 for split in splits)


def test_share_of_a_rank_uses_the_loss_weight():
    y = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])

    def loss_weight(part):
        return float(part.sum())

    assert [RankShard(rank=r, world_size=2).share(y, loss_weight) for r in (0, 1)] == [1, 0]
    assert [
        RankShard(rank=r, world_size=3).share(y, loss_weight) for r in (0, 1, 2)
    ] == pytest.approx([2 / 3, 1 / 3, 0])
    empty_batch = RankShard(rank=0, world_size=2).share(y * 0, loss_weight)
    assert math.isnan(empty_batch)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_batches_of_the_ranks_together_are_those_of_one_process(workers):
    """REPRO-3: the order depends on (seed, epoch, position), not on the reading process."""
    rows = examples(50, 1)

    def read_batches(**options):
        loader_batches = Batches(
            rows, batch_rows=8, seed=4, device=torch.device("cpu"), workers=workers, **options
        )
        return [batch for epoch in (1, 2) for batch in loader_batches.iter_epoch(epoch)]

    one = read_batches()
    ranks = [read_batches(shard=RankShard(rank=rank, world_size=2)) for rank in (0, 1)]
    for (x, y), *parts in zip(one, *ranks, strict=True):
        assert torch.equal(torch.cat([own for own, _ in parts]), x)
        assert all(torch.equal(whole, y) for _, whole in parts)


def test_single_process_operations_return_their_inputs():
    model, values = torch.nn.Linear(1, 1), torch.ones(2)

    assert SINGLE_PROCESS.is_first
    assert SINGLE_PROCESS.wrap(model) is model
    assert SINGLE_PROCESS.all_reduce_sum(values) is values
    assert SINGLE_PROCESS.shard.local_rows(values) is values
    assert SINGLE_PROCESS.broadcast_from_first(lambda: 7) == 7


def test_fold_run_for_two_ranks_has_another_key_and_is_rejected_by_one_rank(specs):
    (spec,) = specs(max_epochs=1)
    train_fold_run(spec, lambda _: None)
    two = dataclasses.replace(spec, num_ranks=2)

    assert find_finished_member(spec) is not None
    assert find_finished_member(two) is None
    with pytest.raises(ContractError, match=r"must be trained by 2 processes together, got 1\."):
        train_fold_run(two, lambda _: None)
