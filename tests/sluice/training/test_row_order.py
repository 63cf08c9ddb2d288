"""The rows of a batch depend on seed, epoch and batch number; bucketing changes their order."""

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


def make_plan(num_rows=1000, *, batch_rows=7, seed=3, lengths=None):
    lengths_of = None if lengths is None else lengths.__getitem__
    return BatchPlan(num_rows, batch_rows=batch_rows, seed=seed, lengths_of=lengths_of)


def rows_of(batches) -> list[list[int]]:
    return [rows.tolist() for rows in batches]


def test_large_orders_use_a_feistel_network_instead_of_a_table(monkeypatch):
    assert isinstance(shuffled_rows(50, seed=1), TableOrder)
    monkeypatch.setattr(row_order, "MAX_SHUFFLED_ROWS", 49)
    order = epoch_order(50, seed=3, epoch=2)

    assert isinstance(order, FeistelOrder)
    expected = FeistelOrder(50, seed=derive_seed(3, "order_2"))
    assert torch.equal(order.part(0, 50), expected.part(0, 50))
    assert sorted(order.part(0, 50).tolist()) == list(range(50))


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["plain", "by length"])
@pytest.mark.parametrize("max_table", [10, 2**24])
def test_epoch_can_start_at_any_batch(max_table, lengths, monkeypatch):
    monkeypatch.setattr(row_order, "MAX_SHUFFLED_ROWS", max_table)
    monkeypatch.setattr(row_order, "_BLOCK_ROWS", 50)
    monkeypatch.setattr(row_order, "_POOL_BATCHES", 9)
    batch_plan = make_plan(lengths=lengths)
    whole = rows_of(batch_plan.batches(2))

    assert sorted(itertools.chain(*whole)) == list(range(1000))
    assert list(map(len, whole)) == batch_plan.sizes().tolist() == [7] * 142 + [6]
    for first in (1, 8, 9, 10, 71, 142, 143):
        assert rows_of(batch_plan.batches(2, first_batch=first)) == whole[first:]
    assert batch_plan.batch(2, 30).tolist() == whole[30]
    others = [
        rows_of(p.batches(e)) for p, e in ((batch_plan, 1), (make_plan(seed=4, lengths=lengths), 2))
    ]
    assert all(other != whole for other in others)


def test_batches_without_lengths_are_parts_of_the_shuffled_order():
    generator = torch.Generator().manual_seed(derive_seed(3, "order_5"))
    expected = torch.randperm(1000, generator=generator).split(7)

    assert rows_of(make_plan().batches(5)) == rows_of(expected)


def test_batch_of_ten_billion_rows_is_computed_within_a_second():
    batch_plan = make_plan(10**10, batch_rows=128)
    start = time.perf_counter()
    rows = batch_plan.batch(3, 70_000_000)

    assert time.perf_counter() - start < 1
    assert (len(rows), batch_plan.num_batches) == (128, 78_125_000)
    assert len(set(rows.tolist())) == 128
    assert 0 <= int(rows.min()) < int(rows.max()) < 10**10


def count_padded(batches) -> int:
    return sum(len(rows) * int(LENGTHS[rows].max()) for rows in batches)


def test_bucketed_batches_have_little_padding_and_are_shuffled():
    by_length = list(make_plan(lengths=LENGTHS).batches(1))
    longest = [int(LENGTHS[rows].max()) for rows in by_length]

    assert count_padded(make_plan().batches(1)) > 1.6 * int(LENGTHS.sum())
    assert count_padded(by_length) < 1.08 * int(LENGTHS.sum())
    assert longest != sorted(longest)
    # A pool has 64 batches, so lengths are sorted within at most three pools.
    assert sum(b < a for a, b in itertools.pairwise(longest)) > 40


def test_incomplete_batch_has_short_and_long_rows_over_epochs():
    last = [list(make_plan(lengths=LENGTHS).batches(epoch))[-1] for epoch in range(1, 30)]
    means = [float(LENGTHS[rows].double().mean()) for rows in last]

    assert min(means) < 10
    assert max(means) > 30


@pytest.mark.parametrize("num_rows", [1, 6, 7, 8, 14, 64 * 7, 64 * 7 + 1])
def test_bucketed_batches_cover_any_number_of_rows(num_rows):
    batches = rows_of(make_plan(num_rows, lengths=LENGTHS).batches(1))

    assert sorted(itertools.chain(*batches)) == list(range(num_rows))
    assert list(map(len, batches)) == make_plan(num_rows).sizes().tolist()


class _SourceWithMethod:
    def lengths_of(self, rows):
        return rows * 2


class _SourceWithAttribute:
    lengths = np.arange(10) * 2


def test_lengths_are_read_from_the_method_or_the_attribute():
    rows = torch.tensor([3, 1])
    for source in (_SourceWithMethod(), _SourceWithAttribute()):
        assert require_lengths(source)(rows).tolist() == [6, 2]
    assert find_lengths(torch.ones(3)) is None
    with pytest.raises(ContractError, match=r"bucket_by_length requires .* but Tensor has neither"):
        require_lengths(torch.ones(3))


def test_bucketing_is_in_the_settings_dump_only_if_enabled():
    """The default must not change existing configuration digests."""
    assert "bucket_by_length" not in TrainSettings().model_dump(mode="json")
    assert TrainSettings(bucket_by_length=True).model_dump(mode="json")["bucket_by_length"] is True


def compute_example_seed(seed: int, epoch: int, row: int) -> int:
    """Return the seed of one example, computed with Python integers."""
    state = ((row + 1) * 0x9E3779B97F4A7C15 + derive_seed(seed, f"augment_{epoch}")) % 2**64
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return (state ^ (state >> 31)) >> 1


def test_example_seeds_depend_only_on_seed_epoch_and_row():
    rows = torch.tensor([5, 0, 10**10, 5])
    seeds = example_seeds(rows, seed=3, epoch=2)

    assert seeds.dtype == torch.int64
    assert seeds.tolist() == [compute_example_seed(3, 2, row) for row in (5, 0, 10**10, 5)]
    assert rows.tolist() == [5, 0, 10**10, 5]
    many = example_seeds(torch.arange(10_000), seed=3, epoch=2)
    assert len(set(many.tolist())) == 10_000
    assert int(many.min()) >= 0
    assert abs(float(many.double().mean()) / 2**62 - 1) < 0.03
    for other in ({"seed": 4, "epoch": 2}, {"seed": 3, "epoch": 1}):
        assert not set(example_seeds(rows, **other).tolist()) & set(seeds.tolist())
