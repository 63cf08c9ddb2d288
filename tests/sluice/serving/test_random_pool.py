"""A pool returns no random bytes twice, and its numbers are uniform."""

import numpy as np
from scipy import stats

from sluice.serving.random_pool import RandomPool


def test_no_bytes_are_returned_twice() -> None:
    pool, other = RandomPool(), RandomPool()
    taken = [pool.take(16) for _ in range(5000)] + [other.take(16) for _ in range(5000)]

    assert {len(found) for found in taken} == {16}
    assert len(set(taken)) == 10_000


def test_numbers_are_uniform() -> None:
    pool = RandomPool()
    found_N = np.array([pool.uniform() for _ in range(20_000)])

    assert found_N.min() >= 0
    assert found_N.max() < 1
    assert stats.kstest(found_N, "uniform").pvalue > 1e-9
