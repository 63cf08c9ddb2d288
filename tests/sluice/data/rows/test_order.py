"""Pseudo-random orders of rows: permutations of which any part can be computed alone."""

import math
import tracemalloc

import numpy as np
import pytest
import torch
from scipy import stats

from sluice.data.rows.order import FeistelOrder, TableOrder

SIZES = [
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    9,
    10,
    13,
    16,
    17,
    97,
    100,
    101,
    1024,
    1031,
    4096,
    9973,
    32768,
    65_537,
]


def read_order(size: int, seed: int = 0) -> torch.Tensor:
    return FeistelOrder(size, seed=seed).part(0, size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_order_is_a_permutation(size, seed):
    rows = read_order(size, seed)

    assert rows.dtype == torch.int64
    assert torch.equal(rows.sort().values, torch.arange(size))


def test_order_is_a_permutation_for_every_small_size():
    for size in range(1, 400):
        assert torch.equal(read_order(size).sort().values, torch.arange(size)), size


@pytest.mark.parametrize("size", [1, 2, 5, 97, 70_001])
def test_parts_of_an_order_equal_the_full_order(size):
    rows, order = read_order(size, seed=3), FeistelOrder(size, seed=3)

    for step in {1 if size < 100 else 977, 32_768, 3 * size}:
        parts = [order.part(start, start + step) for start in range(0, size, step)]
        assert torch.equal(torch.cat(parts), rows)
    assert torch.equal(order.part(size - 1, size + 10), rows[-1:])
    assert len(order.part(size, size + 10)) == 0


def test_equal_seeds_repeat_and_different_seeds_differ():
    orders = [read_order(5_000, seed) for seed in range(30)]

    assert torch.equal(orders[7], read_order(5_000, 7))
    for number, first in enumerate(orders):
        for second in orders[number + 1 :]:
            # Two random permutations agree in one position on average.
            assert int((first == second).sum()) < 10


def test_fixed_points_and_ascents_are_distributed_as_in_random_permutations():
    """Fixed points are Poisson(1); ascents have mean (n-1)/2 and variance (n+1)/12."""
    size, num_seeds = 1009, 400
    rows = torch.stack([read_order(size, seed) for seed in range(num_seeds)]).numpy()

    fixed_points = (rows == np.arange(size)).sum(axis=1)
    counts = np.bincount(np.minimum(fixed_points, 4), minlength=5)
    expected = [math.exp(-1) / math.factorial(k) for k in range(4)]
    expected = np.array([*expected, 1 - sum(expected)]) * num_seeds
    assert stats.chisquare(counts, expected).pvalue > 1e-4

    ascents = (np.diff(rows, axis=1) > 0).sum(axis=1)
    z = (ascents - (size - 1) / 2) / math.sqrt((size + 1) / 12)
    assert stats.kstest(z, "norm").pvalue > 1e-4
    assert abs(z.mean()) < 4 / math.sqrt(num_seeds)


def test_neighbouring_positions_are_uncorrelated():
    rows = read_order(100_003, seed=5).double()

    for lag in (1, 2, 317):  # a digit of the Feistel network has about 317 values
        correlation = np.corrcoef(rows[:-lag], rows[lag:])[0, 1]
        assert abs(correlation) < 4 / math.sqrt(len(rows))


def test_rows_are_uniformly_distributed_in_every_part_of_the_order():
    rows = read_order(100_003, seed=8).numpy()

    for part in np.array_split(rows, 10):
        counts = np.histogram(part, bins=20, range=(0, 100_003))[0]
        assert stats.chisquare(counts).pvalue > 1e-5


def test_memory_does_not_grow_with_the_number_of_rows():
    """At 10^10 rows an index array would need 80 GB."""
    order = FeistelOrder(10**10, seed=0)
    order.part(0, 1000)
    tracemalloc.start()
    try:
        for start in (0, 5 * 10**9, 10**10 - 100_000):
            rows = order.part(start, start + 100_000)
            assert len(rows.unique()) == 100_000
            assert 0 <= int(rows.min()) <= int(rows.max()) < 10**10
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 5_000_000


def test_part_of_a_huge_order_is_spread_over_all_rows():
    rows = FeistelOrder(2**62, seed=1).part(2**61, 2**61 + 20_000).double()

    assert abs(float(rows.mean()) / 2**62 - 0.5) < 0.01
    assert len(rows.unique()) == 20_000


def test_table_order_returns_its_rows_unchanged():
    rows = torch.tensor([3, 1, 2, 0])
    order = TableOrder(rows)

    assert (len(order), order.part(1, 3).tolist(), order.part(3, 9).tolist()) == (4, [1, 2], [0])
