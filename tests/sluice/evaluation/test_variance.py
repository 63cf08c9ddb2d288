"""Variance components of the gain: rows in blocks, seeds and their sum."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from sluice.evaluation.variance import (
    NO_VARIANCE,
    VarianceComponent,
    choose_block_length,
    circular_block_variance,
    pooled,
    rows_component,
    scaled,
    seeds_component,
    shortest_block,
)
from tests.sluice.evaluation.loss_samples import ar1


@pytest.mark.parametrize(("num_rows", "block_length"), [(6, 2), (7, 3), (5, 5), (5, 1)])
def test_the_closed_form_equals_the_variance_over_all_resamples(num_rows, block_length):
    x_n = np.random.default_rng(3).normal(size=num_rows)
    blocks = math.ceil(num_rows / block_length)
    means = []
    for starts in itertools.product(range(num_rows), repeat=blocks):
        rows = np.concatenate([np.arange(s, s + block_length) % num_rows for s in starts])
        means.append(x_n[rows[:num_rows]].mean())

    assert circular_block_variance(x_n, block_length) == pytest.approx(np.var(means), rel=1e-9)


@pytest.mark.slow
def test_the_closed_form_approximates_the_bootstrap_of_arch():
    from arch.bootstrap import CircularBlockBootstrap

    x_n = ar1(np.random.default_rng(1), 0.6, 205)
    bootstrap = CircularBlockBootstrap(12, x_n, seed=np.random.default_rng(2))
    means = bootstrap.apply(np.mean, 20_000)

    assert circular_block_variance(x_n, 12) == pytest.approx(float(np.var(means)), rel=0.04)


def test_blocks_of_one_row_give_the_textbook_variance():
    x_n = np.random.default_rng(0).normal(size=40)

    component = rows_component(x_n, 1)

    assert component.variance == pytest.approx(x_n.var(ddof=1) / 40)
    assert component.degrees_of_freedom == pytest.approx(39)


def test_the_variance_of_fewer_than_two_blocks_is_nan():
    component = rows_component(np.random.default_rng(0).normal(size=19), 10)

    assert math.isnan(component.variance)


def test_the_variance_of_one_seed_is_nan_and_that_of_a_rule_is_zero():
    one = np.array([0.7])

    assert math.isnan(seeds_component(one, is_deterministic=False).variance)
    assert seeds_component(one, is_deterministic=True) == NO_VARIANCE


def test_pooled_degrees_of_freedom_equal_those_of_welchs_test():
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=6), rng.normal(scale=3, size=9)
    welch = stats.ttest_ind(a, b, equal_var=False)

    total = pooled(
        [seeds_component(a, is_deterministic=False), seeds_component(b, is_deterministic=False)]
    )

    assert total.degrees_of_freedom == pytest.approx(welch.df)
    assert (a.mean() - b.mean()) / math.sqrt(total.variance) == pytest.approx(welch.statistic)


def test_pooling_with_an_unknown_component_gives_nan():
    total = pooled(
        [VarianceComponent(variance=1.0, degrees_of_freedom=9.0), rows_component(np.zeros(3), 2)]
    )

    assert math.isnan(total.variance)
    assert math.isnan(total.degrees_of_freedom)


def test_scaling_multiplies_the_variance_by_the_squared_weight():
    component = scaled(VarianceComponent(variance=8.0, degrees_of_freedom=3.0), 0.25)

    assert component == VarianceComponent(variance=0.5, degrees_of_freedom=3.0)


def test_the_block_length_grows_with_dependence_from_a_minimum():
    rng = np.random.default_rng(7)
    lengths = [choose_block_length(ar1(rng, rho, 1000), 1) for rho in (0.0, 0.5, 0.8)]

    assert lengths == sorted(lengths)
    assert lengths[0] == shortest_block(1000, 1) == 10
    assert lengths[2] > 15


def test_the_block_length_equals_that_of_arch_if_longer():
    from arch.bootstrap import optimal_block_length

    x_N = ar1(np.random.default_rng(7), 0.8, 1000)
    optimum = optimal_block_length(x_N)["circular"].iloc[0]

    assert choose_block_length(x_N, 1) == math.ceil(optimum)


def test_overlapping_targets_set_a_minimum_block_length():
    assert choose_block_length(np.random.default_rng(7).normal(size=1000), 15) == 29


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_the_variance_of_dependent_rows_is_nearly_unbiased(rho):
    rng = np.random.default_rng(11)
    variances = []
    for _ in range(300):
        x_N = ar1(rng, rho, 1000)
        length = choose_block_length(x_N, 1)
        variances.append(rows_component(x_N, length).variance)
    expected = (1 + rho) / (1 - rho) / 1000

    # Without the correction for the truncation at the end of a block: 0.84 at rho 0.8.
    assert 0.94 < np.mean(variances) / expected < 1.12
