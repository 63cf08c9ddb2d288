"""Expected calibration error over bins with equal numbers of rows (EVAL-1)."""

import numpy as np
import pytest

from sluice.metrics.calibration import calibration_error


def test_error_of_one_bin_is_the_gap_of_mean_confidence_and_accuracy():
    confidence = np.array([0.9, 0.7, 0.8, 0.6])

    error = calibration_error(confidence, np.array([True, True, False, False]), num_bins=1)

    assert error == pytest.approx(abs(0.75 - 0.5))


def test_bins_have_equal_numbers_of_rows():
    confidence = np.array([0.98, 0.981, 0.999, 1.0])
    is_correct = np.array([False, True, True, True])

    error = calibration_error(confidence, is_correct, num_bins=2)

    low, high = abs(0.9805 - 0.5), abs(0.9995 - 1)
    assert error == pytest.approx((low + high) / 2)


def test_error_does_not_depend_on_row_order_with_ties():
    rng = np.random.default_rng(0)
    confidence = rng.integers(5, 10, 200) / 10
    is_correct = rng.random(200) < 0.7
    order = rng.permutation(200)

    error = calibration_error(confidence, is_correct, num_bins=7)

    assert calibration_error(confidence[order], is_correct[order], num_bins=7) == pytest.approx(
        error
    )


def test_error_is_near_0_if_calibrated_and_the_excess_if_overconfident():
    rng = np.random.default_rng(1)
    probability = rng.uniform(0.5, 0.8, 100_000)
    is_correct = rng.random(100_000) < probability

    assert calibration_error(probability, is_correct, num_bins=15) < 0.01
    assert calibration_error(probability + 0.15, is_correct, num_bins=15) == pytest.approx(
        0.15, abs=0.005
    )
