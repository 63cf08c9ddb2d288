"""A pool returns no random bytes twice, and its numbers are uniform."""

import numpy as np
from scipy import stats

from sluice.serving.random_pool import RandomPool


def test_no_bytes_are_returned_twice() -> None:
    pool, other = RandomPool(), RandomPool()
    drawn = [pool.take(16) for _ in range(5000)] + [other.take(16) for _ in range(5000)]

    assert {len(data) for data in drawn} == {16}
    assert len(set(drawn)) == 10_000


def test_numbers_are_uniform() -> None:
    pool = RandomPool()
    number_N = np.array([pool.uniform() for _ in range(20_000)])

    assert number_N.min() >= 0
    assert number_N.max() < 1
    assert stats.kstest(number_N, "uniform").pvalue > 1e-9
