"""Block lengths and inflation factors of dependent rows."""

import math

import numpy as np
import pytest

from sluice.drift.dependence import MAX_BLOCKS, block_counts, block_starts, measure_dependence
from tests.sluice.evaluation.loss_samples import ar1


def test_blocks_start_at_every_row_or_at_evenly_spread_rows():
    assert block_starts(5).tolist() == [0, 1, 2, 3, 4]
    many = block_starts(10 * MAX_BLOCKS)
    assert many.size == MAX_BLOCKS
    assert set(np.diff(many)) == {10}


def test_block_counts_are_circular():
    codes = np.array([0, 1, 2, 2], np.uint8)

    assert block_counts(codes, 2, 2).tolist() == [[1, 1, 0], [0, 1, 1], [0, 0, 2], [1, 0, 1]]


def test_blocks_are_longer_where_rows_depend_on_each_other():
    rng = np.random.default_rng(0)
    lengths = [
        measure_dependence([ar1(rng, rho, 4000)], 0.01).block_length for rho in (0.0, 0.5, 0.8)
    ]

    assert lengths[0] == 16  # the cube root of 4,000
    assert lengths[0] < lengths[1] < lengths[2]


def test_the_block_length_of_several_series_is_the_longest():
    rng = np.random.default_rng(0)
    noise, slow = rng.normal(size=2000), ar1(rng, 0.9, 2000)

    combined = measure_dependence([noise, slow], 0.01).block_length

    assert combined == measure_dependence([slow], 0.01).block_length


def test_the_inflation_factor_is_larger_for_fewer_blocks():
    rng = np.random.default_rng(0)
    few, many = (measure_dependence([ar1(rng, 0.5, n)], 0.01) for n in (300, 10_000))

    assert few.inflation > many.inflation > 1


def test_a_non_stationary_series_has_a_large_or_no_inflation_factor():
    walk = np.cumsum(np.random.default_rng(0).normal(size=200))

    dependence = measure_dependence([walk], 0.01)

    assert math.isnan(dependence.inflation) or dependence.inflation > 1.5


def test_a_constant_series_has_the_shortest_block_length():
    dependence = measure_dependence([np.zeros(1000)], 0.01)

    assert dependence.block_length == 10
    assert dependence.inflation == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("period", [2, 5, 7])
def test_a_periodic_series_is_resampled_as_independent_rows(period):
    """A random sample of weekdays varies more than the same number of consecutive days."""
    monday = (np.arange(1500) % period == 0).astype(float)

    dependence = measure_dependence([monday, ar1(np.random.default_rng(0), 0.0, 1500)], 0.01)
    periodic = measure_dependence([monday], 0.01)

    assert periodic.block_length == 1
    assert periodic.inflation == 1
    assert dependence.inflation > 0.9
