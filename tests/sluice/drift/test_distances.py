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
WAS, IS = RNG.integers(8, size=400), RNG.integers(2, 8, size=150)


def shares(codes: np.ndarray) -> np.ndarray:
    return np.bincount(codes, minlength=8) / codes.size


def test_ks_is_scipys():
    expected = stats.ks_2samp(VALUES[IS], VALUES[WAS]).statistic

    assert kolmogorov_smirnov(shares(IS), shares(WAS)) == pytest.approx(expected)


def test_wasserstein_is_scipys():
    expected = stats.wasserstein_distance(VALUES[IS], VALUES[WAS])

    assert wasserstein(shares(IS), shares(WAS), VALUES) == pytest.approx(expected)


def test_chi_square_is_scipys():
    expected = stats.chisquare(np.bincount(IS, minlength=8), IS.size * shares(WAS)).statistic

    assert chi_square(shares(IS), shares(WAS), IS.size) == pytest.approx(expected)


def test_psi_is_the_textbooks_when_half_a_row_is_little():
    was, now = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    expected = ((now - was) * np.log(now / was)).sum()

    found = population_stability(now, was, np.arange(3), 1e9)

    assert found == pytest.approx(expected, rel=1e-6)


def test_psi_of_an_empty_bin_is_finite_and_large():
    found = population_stability(np.array([1.0, 0.0]), np.array([0.5, 0.5]), np.arange(2), 100)

    assert 1 < found < 10


def test_cells_of_one_bin_are_one_to_psi():
    was, now = np.array([0.25, 0.25, 0.5]), np.array([0.5, 0.0, 0.5])

    assert population_stability(now, was, np.array([0, 0, 1]), 100) == pytest.approx(0)


def test_every_distance_is_zero_without_a_difference_and_takes_many_windows_at_once():
    was = shares(WAS)
    many = np.stack((was, shares(IS)))

    for distance in (
        kolmogorov_smirnov(many, was),
        wasserstein(many, was, VALUES),
        chi_square(many, was, 100),
        population_stability(many, was, np.arange(8), 100),
    ):
        assert distance.shape == (2,)
        assert distance[0] == pytest.approx(0, abs=1e-12)
        assert distance[1] > 0
