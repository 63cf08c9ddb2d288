"""Distances between binned distributions equal those of SciPy or the textbook."""

import numpy as np
import pytest
from scipy import stats

from sluice.drift.distances import (
    chi_square,
    kolmogorov_smirnov,
    population_stability,
    wasserstein,
)

RNG = np.random.default_rng(0)
VALUES = np.arange(8.0) ** 2
REFERENCE, WINDOW = RNG.integers(8, size=400), RNG.integers(2, 8, size=150)


def shares(codes: np.ndarray) -> np.ndarray:
    return np.bincount(codes, minlength=8) / codes.size


def test_ks_equals_scipys():
    expected = stats.ks_2samp(VALUES[WINDOW], VALUES[REFERENCE]).statistic

    assert kolmogorov_smirnov(shares(WINDOW), shares(REFERENCE)) == pytest.approx(expected)


def test_wasserstein_equals_scipys():
    expected = stats.wasserstein_distance(VALUES[WINDOW], VALUES[REFERENCE])

    assert wasserstein(shares(WINDOW), shares(REFERENCE), VALUES) == pytest.approx(expected)


def test_chi_square_equals_scipys():
    expected = stats.chisquare(
        np.bincount(WINDOW, minlength=8), WINDOW.size * shares(REFERENCE)
    ).statistic

    assert chi_square(shares(WINDOW), shares(REFERENCE), WINDOW.size) == pytest.approx(expected)


def test_psi_equals_the_textbook_formula_for_many_rows():
    reference, window = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    expected = ((window - reference) * np.log(window / reference)).sum()

    psi = population_stability(window, reference, np.arange(3), 1e9)

    assert psi == pytest.approx(expected, rel=1e-6)


def test_psi_of_an_empty_bin_is_finite_and_large():
    psi = population_stability(np.array([1.0, 0.0]), np.array([0.5, 0.5]), np.arange(2), 100)

    assert 1 < psi < 10


def test_psi_ignores_changes_within_a_bin():
    reference, window = np.array([0.25, 0.25, 0.5]), np.array([0.5, 0.0, 0.5])

    assert population_stability(window, reference, np.array([0, 0, 1]), 100) == pytest.approx(0)


def test_every_distance_is_zero_without_a_difference_and_vectorized_over_windows():
    reference = shares(REFERENCE)
    windows = np.stack((reference, shares(WINDOW)))

    for distance in (
        kolmogorov_smirnov(windows, reference),
        wasserstein(windows, reference, VALUES),
        chi_square(windows, reference, 100),
        population_stability(windows, reference, np.arange(8), 100),
    ):
        assert distance.shape == (2,)
        assert distance[0] == pytest.approx(0, abs=1e-12)
        assert distance[1] > 0
