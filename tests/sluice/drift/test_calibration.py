"""Null distributions of distances are estimated by resampling blocks of the reference."""

import math

import numpy as np
import pandas as pd
import pytest

from sluice.config.drift_settings import DriftSettings
from sluice.drift.calibration import (
    NullDistribution,
    calibrate_column,
    draw_size,
    draw_sums,
    null_from_draws,
)
from sluice.drift.columns import reference_column
from sluice.drift.dependence import Dependence
from tests.sluice.evaluation.loss_samples import ar1

SETTINGS = DriftSettings()


def calibrate(
    num_rows: int, *, rho: float = 0.0, reference_rows: int = 5000, seed: int = 0
) -> NullDistribution:
    values = pd.Series(ar1(np.random.default_rng(3), rho, reference_rows), name="x")
    column = reference_column(values, SETTINGS, 0.01)
    return calibrate_column(column, SETTINGS, num_rows=num_rows, num_draws=500, seed=seed)


def test_thresholds_shrink_with_the_rows_of_the_window():
    small, large = (np.array(calibrate(n).thresholds(0.05)) for n in (250, 1000))

    assert small[1] / large[1] == pytest.approx(2, rel=0.2)  # KS: with the square root of the rows
    assert small[0] / large[0] == pytest.approx(4, rel=0.3)  # PSI: inversely with the rows


def test_thresholds_of_large_windows_scale_with_the_effective_number_of_rows():
    ks_small = calibrate(1000, reference_rows=100_000).thresholds(0.05)[1]
    ks_large = calibrate(100_000, reference_rows=100_000).thresholds(0.05)[1]
    # The difference of n and R rows varies as one sample of n R / (n + R) rows.
    expected = math.sqrt((1 / 1000 + 1 / 100_000) / (2 / 100_000))

    assert ks_small / ks_large == pytest.approx(expected, rel=0.15)


def test_dependent_rows_have_larger_thresholds():
    assert calibrate(500, rho=0.8).thresholds(0.05)[1] > 2 * calibrate(500).thresholds(0.05)[1]


def test_the_ks_threshold_of_independent_rows_is_near_kolmogorovs():
    from scipy.special import kolmogi

    expected = kolmogi(0.05) * math.sqrt(1 / 500 + 1 / 5000)

    assert calibrate(500).thresholds(0.05)[1] == pytest.approx(expected, rel=0.12)


def test_the_seed_determines_the_drawn_windows():
    first, repeated, other = calibrate(500), calibrate(500), calibrate(500, seed=1)

    assert np.array_equal(first.distance_DS, repeated.distance_DS)
    assert not np.array_equal(first.distance_DS, other.distance_DS)


def test_the_scale_corrects_for_rows_that_do_not_fill_a_block():
    dependence = Dependence(block_length=30, inflation=1.0)

    number, scale = draw_size(dependence, 100, 10**9)

    assert (number, scale) == (3, pytest.approx(math.sqrt(90 / 100)))


def test_a_draw_is_the_sum_of_whole_blocks():
    block_KG = np.array([[1.0, 0.0], [0.0, 1.0]])

    sums = draw_sums(block_KG, 5, 100, np.random.default_rng(0))

    assert (sums.sum(axis=1) == 5).all()
    assert 2 < sums[:, 0].mean() < 3


def test_a_p_value_counts_draws_with_at_least_the_distance():
    null = null_from_draws(np.array([[1.0], [2.0], [3.0], [4.0]]), 100)

    assert null.p_values(np.array([3.0])) == (3 / 5,)
    assert null.p_values(np.array([5.0])) == (1 / 5,)
    assert null.p_values(np.array([0.0])) == (1.0,)


def test_the_combined_p_value_is_corrected_for_several_distances():
    rng = np.random.default_rng(0)
    distance_DS = rng.normal(size=(2000, 3))
    null = null_from_draws(distance_DS[:1000], 100)

    combined = [null.combined_p_value(null.p_values(row)) for row in distance_DS[1000:]]
    smallest = [min(null.p_values(row)) for row in distance_DS[1000:]]

    assert np.mean(np.array(combined) <= 0.1) == pytest.approx(0.1, abs=0.03)
    assert np.mean(np.array(smallest) <= 0.1) > 0.2


def test_a_distance_of_nan_has_the_p_value_nan():
    null = null_from_draws(np.arange(8.0).reshape(4, 2), 100)

    p_S = null.p_values(np.array([np.nan, 1.0]))

    assert math.isnan(p_S[0])
    assert math.isnan(null.combined_p_value(p_S))
