"""Rows of similar length are batched together, and the order stays a function of its arguments."""

import pytest
import torch

from sluice.base.errors import ContractError
from sluice.data.rows import BucketedOrder, bucketed_batches
from sluice.data.rows.order import FeistelOrder, TableOrder

LENGTHS = torch.randint(1, 200, (2_003,), generator=torch.Generator().manual_seed(1))


def make(size=2_003, *, seed=0, **settings):
    settings = {"batch_rows": 16, "chunk_batches": 8} | settings
    return BucketedOrder(FeistelOrder(size, seed=seed), LENGTHS[:size], seed=seed, **settings)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 128, 129, 2_003])
def test_every_row_appears_once(size):
    rows = make(size).part(0, size)

    assert torch.equal(rows.sort().values, torch.arange(size))


def test_parts_equal_the_whole():
    whole = make().part(0, 2_003)

    for step in (1, 16, 100, 128, 1_000):
        order = make()
        parts = [order.part(at, at + step) for at in range(0, 2_003, step)]
        assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(make().part(1_500, 1_600), whole[1_500:1_600])  # the first that is read
    assert make().part(5, 5).tolist() == make().part(3_000, 3_001).tolist() == []


def test_batches_can_be_continued_at_any_step():
    order = FeistelOrder(2_003, seed=0)
    batches = list(bucketed_batches(order, LENGTHS, batch_rows=16, seed=0, chunk_batches=8))
    rest = list(
        bucketed_batches(order, LENGTHS, batch_rows=16, seed=0, chunk_batches=8, first_batch=77)
    )

    assert [len(batch) for batch in batches] == [16] * 125 + [3]
    assert torch.equal(torch.cat(batches), make().part(0, 2_003))
    assert all(torch.equal(a, b) for a, b in zip(batches[77:], rest, strict=True))


def padding(rows):
    """Return the share of padding when every batch is padded to its longest row."""
    batches = LENGTHS[rows[: len(rows) // 16 * 16]].view(-1, 16)
    return 1 - float(batches.sum() / (batches.max(1).values * 16).sum())


def test_padding_shrinks():
    plain = FeistelOrder(2_003, seed=0).part(0, 2_003)

    assert padding(plain) > 0.4
    assert padding(make().part(0, 2_003)) < 0.15


def test_a_batch_is_a_range_of_lengths_of_its_chunk():
    rows = make().part(0, 128).view(8, 16)
    chunk = LENGTHS[FeistelOrder(2_003, seed=0).part(0, 128)].sort().values.view(8, 16)

    batches = sorted(LENGTHS[batch].sort().values.tolist() for batch in rows)

    assert batches == chunk.tolist()


def test_batches_are_shuffled_by_the_seed():
    starts = LENGTHS[make(chunk_batches=64).part(0, 1_024).view(64, 16)[:, 0]]
    ascents = int((starts.diff() > 0).sum())
    assert 15 < ascents < 48  # sorted batches have nearly 63

    first, again, other = make(), make(), make(seed=1)
    assert torch.equal(first.part(0, 2_003), again.part(0, 2_003))
    assert int((first.part(0, 2_003) == other.part(0, 2_003)).sum()) < 20


def test_rows_of_equal_length_stay_in_the_given_order():
    order = TableOrder(torch.arange(32).flip(0))

    rows = BucketedOrder(order, torch.ones(32), batch_rows=32, seed=0).part(0, 32)

    assert rows.tolist() == list(range(31, -1, -1))


def test_lengths_are_read_for_one_chunk_only():
    seen = []

    def lengths_of(rows):
        seen.append(len(rows))
        return LENGTHS[rows]

    order = BucketedOrder(
        FeistelOrder(2_003, seed=0), lengths_of, batch_rows=16, seed=0, chunk_batches=8
    )
    for start in range(1_280, 1_408, 16):  # the batches of one chunk
        order.part(start, start + 16)

    assert seen == [128]


@pytest.mark.parametrize("settings", [{"batch_rows": 0}, {"chunk_batches": 0}])
def test_a_size_of_zero_is_refused(settings):
    with pytest.raises(ContractError, match="must be at least 1, got"):
        make(**settings)
