"""The rows of any batch follow from seed, epoch and number; bucketing changes only their order."""

import itertools
import time

import numpy as np
import pytest
import torch

from sluice.base.errors import ContractError
from sluice.base.seeding import derive_seed
from sluice.data.rows.order import FeistelOrder, TableOrder
from sluice.data.rows.protocol import find_lengths
from sluice.training import row_order
from sluice.training.row_order import (
    BatchPlan,
    epoch_order,
    example_seeds,
    require_lengths,
    shuffled_rows,
)
from sluice.training.settings import TrainSettings

LENGTHS = torch.from_numpy(np.random.default_rng(0).integers(1, 40, 1000))


def plan(num_rows=1000, *, batch_rows=7, seed=3, lengths=None):
    lengths_of = None if lengths is None else lengths.__getitem__
    return BatchPlan(num_rows, batch_rows=batch_rows, seed=seed, lengths_of=lengths_of)


def rows_of(batches) -> list[list[int]]:
    return [rows.tolist() for rows in batches]


def test_a_small_order_is_a_table_and_a_large_one_has_no_table(monkeypatch):
    assert isinstance(shuffled_rows(50, seed=1), TableOrder)
    monkeypatch.setattr(row_order, "MAX_SHUFFLED_ROWS", 49)
    order = epoch_order(50, seed=3, epoch=2)

    assert isinstance(order, FeistelOrder)
    expected = FeistelOrder(50, seed=derive_seed(3, "order_2"))
    assert torch.equal(order.part(0, 50), expected.part(0, 50))
    assert sorted(order.part(0, 50).tolist()) == list(range(50))


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["plain", "by length"])
@pytest.mark.parametrize("max_table", [10, 2**24])
def test_an_epoch_from_any_batch_on_is_the_end_of_the_epoch(max_table, lengths, monkeypatch):
    monkeypatch.setattr(row_order, "MAX_SHUFFLED_ROWS", max_table)
    monkeypatch.setattr(row_order, "_BLOCK_ROWS", 50)
    monkeypatch.setattr(row_order, "_POOL_BATCHES", 9)
    some = plan(lengths=lengths)
    whole = rows_of(some.batches(2))

    assert sorted(itertools.chain(*whole)) == list(range(1000))
    assert list(map(len, whole)) == some.sizes().tolist() == [7] * 142 + [6]
    for first in (1, 8, 9, 10, 71, 142, 143):
        assert rows_of(some.batches(2, first=first)) == whole[first:]
    assert some.batch(2, 30).tolist() == whole[30]
    others = [rows_of(p.batches(e)) for p, e in ((some, 1), (plan(seed=4, lengths=lengths), 2))]
    assert all(other != whole for other in others)


def test_the_plain_batches_are_parts_of_the_order():
    generator = torch.Generator().manual_seed(derive_seed(3, "order_5"))
    expected = torch.randperm(1000, generator=generator).split(7)

    assert rows_of(plan().batches(5)) == rows_of(expected)


def test_a_batch_of_ten_billion_rows_takes_no_time_and_no_table():
    some = plan(10**10, batch_rows=128)
    began = time.perf_counter()
    rows = some.batch(3, 70_000_000)

    assert time.perf_counter() - began < 1
    assert (len(rows), some.num_batches) == (128, 78_125_000)
    assert len(set(rows.tolist())) == 128
    assert 0 <= int(rows.min()) < int(rows.max()) < 10**10


def padded(batches) -> int:
    return sum(len(rows) * int(LENGTHS[rows].max()) for rows in batches)


def test_batches_by_length_need_little_padding_and_are_shuffled():
    by_length = list(plan(lengths=LENGTHS).batches(1))
    longest = [int(LENGTHS[rows].max()) for rows in by_length]

    assert padded(plan().batches(1)) > 1.6 * int(LENGTHS.sum())
    assert padded(by_length) < 1.08 * int(LENGTHS.sum())
    assert longest != sorted(longest)
    # A pool has 64 batches, so lengths are sorted within at most three pools.
    assert sum(b < a for a, b in itertools.pairwise(longest)) > 40


def test_the_incomplete_batch_is_not_always_of_the_longest_rows():
    last = [list(plan(lengths=LENGTHS).batches(epoch))[-1] for epoch in range(1, 30)]
    means = [float(LENGTHS[rows].double().mean()) for rows in last]

    assert min(means) < 10
    assert max(means) > 30


@pytest.mark.parametrize("num_rows", [1, 6, 7, 8, 14, 64 * 7, 64 * 7 + 1])
def test_any_number_of_rows_is_covered_by_length(num_rows):
    batches = rows_of(plan(num_rows, lengths=LENGTHS).batches(1))

    assert sorted(itertools.chain(*batches)) == list(range(num_rows))
    assert list(map(len, batches)) == plan(num_rows).sizes().tolist()


class _Method:
    def lengths_of(self, rows):
        return rows * 2


class _Attribute:
    lengths = np.arange(10) * 2


def test_lengths_are_those_of_the_method_or_the_attribute():
    rows = torch.tensor([3, 1])
    for source in (_Method(), _Attribute()):
        assert require_lengths(source)(rows).tolist() == [6, 2]
    assert find_lengths(torch.ones(3)) is None
    with pytest.raises(ContractError, match=r"bucket_by_length requires .* but Tensor has neither"):
        require_lengths(torch.ones(3))


def test_bucketing_is_part_of_the_settings_only_when_it_is_on():
    """Its default changes no digest of a configuration."""
    assert "bucket_by_length" not in TrainSettings().model_dump(mode="json")
    assert TrainSettings(bucket_by_length=True).model_dump(mode="json")["bucket_by_length"] is True


def seed_by_hash(seed: int, epoch: int, row: int) -> int:
    """Return the seed of one example, with Python's integers."""
    state = ((row + 1) * 0x9E3779B97F4A7C15 + derive_seed(seed, f"augment_{epoch}")) % 2**64
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return (state ^ (state >> 31)) >> 1


def test_seeds_of_examples_depend_on_seed_epoch_and_row_alone():
    rows = torch.tensor([5, 0, 10**10, 5])
    seeds = example_seeds(rows, seed=3, epoch=2)

    assert seeds.dtype == torch.int64
    assert seeds.tolist() == [seed_by_hash(3, 2, row) for row in (5, 0, 10**10, 5)]
    assert rows.tolist() == [5, 0, 10**10, 5]
    many = example_seeds(torch.arange(10_000), seed=3, epoch=2)
    assert len(set(many.tolist())) == 10_000
    assert int(many.min()) >= 0
    assert abs(float(many.double().mean()) / 2**62 - 1) < 0.03
    for other in ({"seed": 4, "epoch": 2}, {"seed": 3, "epoch": 1}):
        assert not set(example_seeds(rows, **other).tolist()) & set(seeds.tolist())
