"""EVAL-1: expected calibration error over bins with equal numbers of rows."""

import numpy as np
import pytest

from sluice.metrics.calibration import calibration_error


def test_one_bin_is_the_gap_of_the_means():
    confidence = np.array([0.9, 0.7, 0.8, 0.6])

    found = calibration_error(confidence, np.array([True, True, False, False]), num_bins=1)

    assert found == pytest.approx(abs(0.75 - 0.5))


def test_two_bins_hold_equally_many_rows_however_close_they_are():
    confidence = np.array([0.98, 0.981, 0.999, 1.0])
    hit = np.array([False, True, True, True])

    found = calibration_error(confidence, hit, num_bins=2)

    low, high = abs(0.9805 - 0.5), abs(0.9995 - 1)
    assert found == pytest.approx((low + high) / 2)


def test_the_order_of_the_rows_does_not_matter_ties_included():
    rng = np.random.default_rng(0)
    confidence = rng.integers(5, 10, 200) / 10
    hit = rng.random(200) < 0.7
    order = rng.permutation(200)

    one = calibration_error(confidence, hit, num_bins=7)

    assert calibration_error(confidence[order], hit[order], num_bins=7) == pytest.approx(one)


def test_a_calibrated_model_is_near_0_and_an_overconfident_one_is_off_by_its_excess():
    rng = np.random.default_rng(1)
    chance = rng.uniform(0.5, 0.8, 100_000)
    hit = rng.random(100_000) < chance

    assert calibration_error(chance, hit, num_bins=15) < 0.01
    assert calibration_error(chance + 0.15, hit, num_bins=15) == pytest.approx(0.15, abs=0.005)
