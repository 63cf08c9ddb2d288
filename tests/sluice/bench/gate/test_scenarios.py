"""The scenarios of the gate benchmark have the variance and gain that they state (STAT-3)."""

import numpy as np
import pytest

from sluice.bench.gate.scenarios import GateScenario
from sluice.evaluation.estimate import ArmLosses, mean_gain


@pytest.mark.parametrize(
    "world",
    [
        GateScenario(rho=0.0, num_rows=300),
        GateScenario(rho=0.8, num_rows=300),
        GateScenario(rho=0.5, horizon_rows=20, num_rows=300, tails="t3"),
        GateScenario(rho=0.0, horizon_rows=5, num_rows=300, tails="clustered"),
    ],
    ids=str,
)
def test_stated_variance_of_the_mean_matches_simulation(world):
    rng = np.random.default_rng(0)
    means = [world.draw_time_effect(rng).mean() for _ in range(400)]

    assert np.var(means) == pytest.approx(world.row_variance, rel=0.3)


def test_row_variance_matches_the_formula_for_independent_and_correlated_rows():
    assert GateScenario(rho=0.0, num_rows=400).row_variance == pytest.approx(0.09 / 400)
    lags = np.arange(1, 400)
    inflation = 1 + 2 * ((1 - lags / 400) * 0.5**lags).sum()
    assert GateScenario(rho=0.5, num_rows=400).row_variance == pytest.approx(0.09 / 400 * inflation)


@pytest.mark.parametrize("has_deterministic_reference", [False, True])
def test_gain_and_standard_error_match_simulation(has_deterministic_reference):
    world = GateScenario(
        rho=0.5, num_rows=100, num_seeds=5, has_deterministic_reference=has_deterministic_reference
    )
    rng = np.random.default_rng(0)
    gains = [mean_gain(*map(ArmLosses.of, world.draw(rng, gain=0.2))).mean() for _ in range(200)]

    assert np.mean(gains) == pytest.approx(0.2, abs=4 * world.true_se / 200**0.5)
    assert np.std(gains) == pytest.approx(world.true_se, rel=0.17)


def test_clustered_shocks_are_correlated_and_t3_shocks_have_heavy_tails():
    def square_correlation(tails) -> float:
        x_N = GateScenario(rho=0.0, tails=tails, num_rows=20_000).draw_time_effect(
            np.random.default_rng(1)
        )
        return float(np.corrcoef(np.abs(x_N[1:]), np.abs(x_N[:-1]))[0, 1])

    t3_N = GateScenario(rho=0.0, tails="t3", num_rows=20_000).draw_time_effect(
        np.random.default_rng(1)
    )

    assert square_correlation("clustered") > 0.1 > square_correlation("normal")
    assert np.abs(t3_N).max() > 8 * t3_N.std()
