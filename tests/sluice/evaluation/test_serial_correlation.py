"""STAT-3: rows that are declared independent, and rows that are not."""

import numpy as np
import pytest
from scipy.stats import t as student

from sluice.evaluation.comparison import compare
from sluice.evaluation.serial_correlation import is_autocorrelated, lag1_autocorrelation
from sluice.evaluation.settings import GateSettings
from tests.sluice.evaluation.loss_samples import ar1, centred, table, two_recipes

GATE = GateSettings()


def rows(gain_N: np.ndarray):
    """Five seeds that are alike but for a speck, against a rule."""
    reference = np.full((1, gain_N.size), 5.0)
    speck = 1e-9 * np.arange(5)[:, None]
    return (
        table(reference - gain_N + speck, "candidate"),
        table(reference, "reference", deterministic=True),
    )


def test_a_horizon_of_0_gives_the_bound_of_students_test():
    gain_N = np.random.default_rng(0).normal(0.1, 1, 400)

    verdict = compare(*rows(gain_N), GATE, horizon_rows=0)

    assert verdict.block_length == 1
    error = gain_N.std(ddof=1) / np.sqrt(400)
    assert verdict.standard_error == pytest.approx(error, rel=1e-3)
    lower = gain_N.mean() - student.ppf(0.95, 399) * error
    assert verdict.lower_bound == pytest.approx(lower, rel=5e-3)


def test_a_horizon_of_1_keeps_its_blocks_on_the_same_rows():
    gain_N = np.random.default_rng(0).normal(0.1, 1, 400)

    assert compare(*rows(gain_N), GATE, horizon_rows=1).block_length >= 8


def test_dependent_rows_declared_independent_are_inconclusive():
    gain_N = centred(ar1(np.random.default_rng(1), 0.5, 1000)) + 1

    verdict = compare(*rows(gain_N), GATE, horizon_rows=0)

    assert verdict.outcome == "INCONCLUSIVE"
    assert "gains of neighbouring rows are significantly" in verdict.reason
    assert "horizon of at least 1" in verdict.remedy
    assert compare(*rows(gain_N), GATE, horizon_rows=1).outcome == "PROMOTE"


@pytest.mark.parametrize("asked", [1, 2, 10])
def test_a_short_block_by_setting_does_not_replace_the_estimate(asked):
    """Blocks of 2 would promote falsely in a sixth of cases at rho 0.8."""
    gain_N = centred(ar1(np.random.default_rng(1), 0.8, 1000)) + 1
    estimated = compare(*rows(gain_N), GateSettings(), horizon_rows=1)

    verdict = compare(*rows(gain_N), GateSettings(block_length=asked), horizon_rows=1)

    assert verdict == estimated
    assert verdict.block_length > 10


def test_a_longer_block_may_be_asked_for():
    gain_N = np.random.default_rng(0).normal(0.1, 1, 400)

    verdict = compare(*rows(gain_N), GateSettings(block_length=7), horizon_rows=0)

    assert verdict.block_length == 7


def test_lag1_autocorrelation_has_the_expected_value():
    assert lag1_autocorrelation(np.array([1.0, -1.0, 1.0, -1.0])) == pytest.approx(-0.75)
    assert not is_autocorrelated(np.tile([1.0, -1.0], 500))
    assert not is_autocorrelated(np.zeros(10))
    assert not is_autocorrelated(np.array([np.nan, 1.0, 2.0]))


def test_independent_rows_are_rarely_called_dependent():
    rng = np.random.default_rng(3)
    tails = rng.standard_t(3, (1000, 300))
    rare = rng.binomial(1, 0.03, (1000, 300)) - 0.03

    assert sum(is_autocorrelated(centred(row)) for row in tails) == 0
    assert sum(is_autocorrelated(centred(row)) for row in rare) <= 12


@pytest.mark.slow
@pytest.mark.parametrize("seed_share", [pytest.param(0.2, marks=pytest.mark.exhaustive), 0.6])
def test_false_promotions_of_independent_rows_are_at_most_alpha(seed_share):
    rng = np.random.default_rng(11)
    promoted = sum(
        compare(
            *two_recipes(rng, rho=0.0, seed_share=seed_share, num_rows=400), GATE, horizon_rows=0
        ).passed
        for _ in range(400)
    )

    assert promoted <= 34  # 99.9 % binomial bound of 5 % of 400
