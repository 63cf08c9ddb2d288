"""The permutation test of the maximum mean discrepancy, with blocks for dependent rows."""

import numpy as np
import pytest
from scipy.stats import binom

from sluice.base.errors import ContractError
from sluice.drift.mmd import mmd_test


def run(first, second, *, block_length=1, permutations=199, alpha=0.05, seed=0):
    return mmd_test(
        first,
        second,
        block_length=block_length,
        num_permutations=permutations,
        alpha=alpha,
        seed=seed,
    )


def mmd_by_loops(first, second, block_length):
    """Compute the estimate by loops over pairs of rows of different blocks."""
    rows = [*first, *second]
    distances = sorted(
        float(np.linalg.norm(rows[i] - rows[j])) for i in range(len(rows)) for j in range(i)
    )
    width = float(np.median(distances))

    def kernel(a, b):
        return np.exp(-(np.linalg.norm(a - b) ** 2) / (2 * width**2))

    def within(sample):
        pairs = [
            kernel(sample[i], sample[j])
            for i in range(len(sample))
            for j in range(len(sample))
            if i // block_length != j // block_length
        ]
        return np.mean(pairs)

    between = np.mean([kernel(a, b) for a in first for b in second])
    return within(first) + within(second) - 2 * between, width


@pytest.mark.parametrize("block_length", [1, 3])
def test_the_estimate_equals_loops_over_pairs(block_length):
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(12, 4)), rng.normal(0.5, 2, size=(9, 4))

    test = run(first, second, block_length=block_length)

    expected, width = mmd_by_loops(first, second, block_length)
    assert test.mmd_squared == pytest.approx(expected, rel=1e-10)
    assert test.bandwidth == pytest.approx(width, rel=1e-10)
    assert test.num_blocks == (12 // block_length, 9 // block_length)


def test_two_point_clusters_match_the_closed_form():
    """For samples at 0 and 1, the median distance is 1, so MMD^2 is 2 - 2 exp(-1/2)."""
    test = run(np.zeros((20, 1)), np.ones((20, 1)))

    assert test.bandwidth == 1.0
    assert test.mmd_squared == pytest.approx(2 - 2 * np.exp(-0.5), rel=1e-12)
    assert test.p_value == 1 / 200


def test_the_oldest_rows_that_do_not_fill_a_block_are_omitted():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(13, 2)), rng.normal(size=(14, 2))

    assert run(first, second, block_length=3) == run(first[1:], second[2:], block_length=3)


def test_the_seed_and_the_number_of_permutations_are_used():
    rng = np.random.default_rng(3)
    samples = rng.normal(size=(2, 30, 3))

    assert run(*samples) == run(*samples)
    assert run(*samples).p_value != run(*samples, seed=1).p_value
    assert run(*samples, permutations=99).num_permutations == 99


@pytest.mark.slow
def test_without_drift_the_rate_of_small_p_values_is_nominal():
    """False alarms at 5 % in 600 pairs of samples, within the 99.9 % binomial interval."""
    rng, alpha, num = np.random.default_rng(20240601), 0.05, 600
    scale = np.linspace(0.2, 2, 5)

    tests = [
        run(rng.normal(size=(40, 5)) * scale, rng.normal(size=(25, 5)) * scale, seed=n)
        for n in range(num)
    ]

    low, high = binom.ppf([0.0005, 0.9995], num, alpha)
    assert low <= sum(test.p_value <= alpha for test in tests) <= high
    assert low <= sum(test.mmd_squared > test.threshold for test in tests) <= high


def autoregressive(rng, rows):
    noise = rng.normal(size=(rows + 50, 2))
    for row in range(1, len(noise)):
        noise[row] += 0.8 * noise[row - 1]
    return noise[50:]


@pytest.mark.slow
def test_blocks_keep_the_false_alarm_rate_of_dependent_rows():
    rng, num = np.random.default_rng(5), 100
    pairs = [(autoregressive(rng, 160), autoregressive(rng, 160)) for _ in range(num)]

    def rate(block_length):
        tests = (run(*pair, block_length=block_length, permutations=99) for pair in pairs)
        return sum(test.p_value <= 0.05 for test in tests) / num

    assert rate(20) <= binom.ppf(0.9995, num, 0.05) / num
    assert rate(1) > 0.3  # rows of a series are not exchangeable


def test_a_change_of_only_the_correlation_is_detected():
    """Both columns keep their distribution; only their correlation changes from 0 to 0.9."""
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=(2, 300, 2))
    second[:, 1] = 0.9 * second[:, 0] + np.sqrt(1 - 0.81) * second[:, 1]

    assert run(first, second).p_value == 1 / 200


def test_equal_rows_have_no_bandwidth_and_no_drift():
    test = run(np.full((10, 2), 0.1), np.full((10, 2), 0.1))

    assert (test.bandwidth, test.p_value) == (0.0, 1.0)
    assert test.mmd_squared == pytest.approx(0.0, abs=1e-12)


def test_mostly_equal_rows_have_the_median_of_other_distances():
    sample = np.zeros((20, 1))
    sample[0] = 3.0

    assert run(sample, np.zeros((20, 1))).bandwidth == 3.0


@pytest.mark.parametrize(
    ("first", "second", "block_length", "message"),
    [
        (np.zeros((5, 2)), np.zeros((5, 3)), 1, "of the same width, got"),
        (np.zeros(5), np.zeros(5), 1, "must be matrices"),
        (np.zeros((5, 2)), np.zeros((3, 2)), 2, "two blocks of 2 rows, got 5 and 3 rows"),
        (np.zeros((5, 2)), np.zeros((5, 2)), 0, "two blocks of 0 rows"),
        (np.zeros((5, 2)), np.full((5, 2), np.nan), 1, "in 5 rows of the second sample"),
    ],
)
def test_bad_samples_are_refused(first, second, block_length, message):
    with pytest.raises(ContractError, match=message):
        run(first, second, block_length=block_length)
