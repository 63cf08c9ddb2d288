"""The gate detects dependent rows that are declared independent (STAT-3)."""

import numpy as np
import pytest
from scipy.stats import t as student

from sluice.evaluation.comparison import compare
from sluice.evaluation.serial_correlation import is_autocorrelated, lag1_autocorrelation
from sluice.evaluation.settings import GateSettings
from tests.sluice.evaluation.loss_samples import ar1, center, make_losses, simulate_arms

GATE = GateSettings()


def make_arms(gain_N: np.ndarray):
    """Return five nearly equal seeds, and a rule, with these gains."""
    reference = np.full((1, gain_N.size), 5.0)
    seed_effect_S1 = 1e-9 * np.arange(5)[:, None]
    return (
        make_losses(reference - gain_N + seed_effect_S1, "candidate"),
        make_losses(reference, "reference", deterministic=True),
    )


def test_a_horizon_of_0_gives_the_bound_of_the_t_test():
    gain_N = np.random.default_rng(0).normal(0.1, 1, 400)

    verdict = compare(*make_arms(gain_N), GATE, horizon_rows=0)

    assert verdict.block_length == 1
    error = gain_N.std(ddof=1) / np.sqrt(400)
    assert verdict.standard_error == pytest.approx(error, rel=1e-3)
    lower = gain_N.mean() - student.ppf(0.95, 399) * error
    assert verdict.lower_bound == pytest.approx(lower, rel=5e-3)


def test_a_horizon_of_1_uses_blocks_of_several_rows():
    gain_N = np.random.default_rng(0).normal(0.1, 1, 400)

    assert compare(*make_arms(gain_N), GATE, horizon_rows=1).block_length >= 8


def test_dependent_rows_declared_independent_are_inconclusive():
    gain_N = center(ar1(np.random.default_rng(1), 0.5, 1000)) + 1

    verdict = compare(*make_arms(gain_N), GATE, horizon_rows=0)

    assert verdict.outcome == "INCONCLUSIVE"
    assert "gains of neighbouring rows are significantly" in verdict.reason
    assert "horizon of at least 1" in verdict.remedy
    assert compare(*make_arms(gain_N), GATE, horizon_rows=1).outcome == "PROMOTE"


@pytest.mark.parametrize("block_length", [1, 2, 10])
def test_a_block_length_below_the_estimate_is_ignored(block_length):
    """With blocks of 2 rows, a sixth of candidates would be promoted falsely at rho 0.8."""
    gain_N = center(ar1(np.random.default_rng(1), 0.8, 1000)) + 1
    estimated = compare(*make_arms(gain_N), GateSettings(), horizon_rows=1)

    verdict = compare(*make_arms(gain_N), GateSettings(block_length=block_length), horizon_rows=1)

    assert verdict == estimated
    assert verdict.block_length > 10


def test_a_block_length_above_the_estimate_is_used():
    gain_N = np.random.default_rng(0).normal(0.1, 1, 400)

    verdict = compare(*make_arms(gain_N), GateSettings(block_length=7), horizon_rows=0)

    assert verdict.block_length == 7


def test_lag1_autocorrelation_has_the_expected_value():
    assert lag1_autocorrelation(np.array([1.0, -1.0, 1.0, -1.0])) == pytest.approx(-0.75)
    assert not is_autocorrelated(np.tile([1.0, -1.0], 500))
    assert not is_autocorrelated(np.zeros(10))
    assert not is_autocorrelated(np.array([np.nan, 1.0, 2.0]))


def test_independent_rows_are_rarely_detected_as_autocorrelated():
    rng = np.random.default_rng(3)
    heavy_tailed = rng.standard_t(3, (1000, 300))
    sparse = rng.binomial(1, 0.03, (1000, 300)) - 0.03

    assert sum(is_autocorrelated(center(row)) for row in heavy_tailed) == 0
    assert sum(is_autocorrelated(center(row)) for row in sparse) <= 12


@pytest.mark.slow
@pytest.mark.parametrize("seed_share", [pytest.param(0.2, marks=pytest.mark.exhaustive), 0.6])
def test_false_promotions_of_independent_rows_are_at_most_alpha(seed_share):
    rng = np.random.default_rng(11)
    promoted = sum(
        compare(
            *simulate_arms(rng, rho=0.0, seed_share=seed_share, num_rows=400), GATE, horizon_rows=0
        ).passed
        for _ in range(400)
    )

    assert promoted <= 34  # 99.9 % binomial bound of 5 % of 400
