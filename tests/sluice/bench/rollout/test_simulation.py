"""Rollback delays and false rollbacks at reduced size (ROLL-2); see ``sluice bench rollout``."""

import numpy as np
import pytest

from sluice.bench.rollout.naive import detect_harm_naively
from sluice.bench.rollout.scenarios import scenarios
from sluice.bench.rollout.simulation import RolloutScenario, measure_rollouts, simulate_rollout
from sluice.bench.rollout.traffic import Traffic, TrafficSimulator
from sluice.rollout.observations import ArmCounts, TrafficCounts
from sluice.rollout.settings import RolloutSettings, RolloutStep
from tests.sluice.rollout.rollout_samples import NOW

LONG_STEPS = RolloutSettings(min_step_s=7200, max_step_s=9000)


def measure_scenario(scenario, rollouts):
    (found,) = measure_rollouts([scenario], num_rollouts=rollouts, seed=7, num_processes=1)
    return found


def make_scenario(traffic, *, seconds, settings=LONG_STEPS, max_rollback_rate=None):
    return RolloutScenario(
        name="test",
        traffic=traffic,
        settings=settings,
        seconds=seconds,
        max_rollback_rate=max_rollback_rate,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "median_s", "p90_s"),
    [pytest.param(5, 60, 120, id="5"), pytest.param(20, 15, 20, id="20")],
)
def test_error_jump_is_rolled_back_in_time(factor, median_s, p90_s):
    """At 5 % of 100 requests/s, 1 % errors become 5 % or 20 %."""
    found = measure_scenario(make_scenario(Traffic(error_factor=factor), seconds=300), 60)

    assert found.num_rolled_back == found.num_rollouts
    assert found.median_s <= median_s
    assert found.p90_s <= p90_s


@pytest.mark.slow
@pytest.mark.parametrize("shared_effect_sd", [0.0, 0.6])
def test_healthy_challenger_stays_where_a_repeated_z_test_rolls_back(shared_effect_sd):
    """With alpha = 20 %, at most 4.8 of 24 rollouts are rolled back on average."""
    settings = RolloutSettings(min_step_s=120, max_step_s=9000, alpha=0.2)
    traffic = Traffic(
        shared_effect_sd=shared_effect_sd, harm_at_s=float("inf"), assessment_interval_s=4
    )
    found = measure_scenario(
        make_scenario(traffic, seconds=500, settings=settings, max_rollback_rate=0.2), 24
    )

    assert found.num_rolled_back <= 5
    assert found.num_false_naive >= 10


@pytest.mark.slow
def test_harm_that_begins_later_is_detected():
    found = measure_scenario(
        make_scenario(Traffic(error_factor=20, harm_at_s=300), seconds=360), 20
    )

    assert found.num_early == 0
    assert found.num_rolled_back == 20
    assert found.p90_s <= 20


def test_simulation_is_reproducible_and_varies_with_the_seed():
    def ends(seed):
        return simulate_rollout(Traffic(error_factor=20), LONG_STEPS, seconds=60, seed=(seed,))

    assert ends(1) == ends(1)
    assert len({ends(seed) for seed in range(5)}) > 1


def test_simulated_arms_have_the_configured_rates():
    simulator = TrafficSimulator(Traffic(error_factor=3), rng=np.random.default_rng(3))
    for _ in range(500):
        window = simulator.next_counts(RolloutStep(share=0.25), rollout="r", epoch=1)
    challenger, production = window.challenger, window.production

    assert challenger.requests / (challenger.requests + production.requests) == pytest.approx(
        0.25, abs=0.01
    )
    assert challenger.errors / challenger.requests == pytest.approx(0.03, abs=0.005)
    assert production.errors / production.requests == pytest.approx(0.01, abs=0.002)
    assert production.slower / production.requests == pytest.approx(0.05, abs=0.005)
    simulator.next_step()
    assert (
        simulator.next_counts(RolloutStep(share=1.0), rollout="r", epoch=2).challenger.requests
        < 400
    )


def test_z_test_agrees_with_known_values():
    """z = 1.840 for 20 against 10 of 1000; a guard has a quarter of alpha, 2.241 at 5 %."""

    def harm(alpha):
        window = TrafficCounts(
            rollout="r",
            epoch=1,
            since=NOW,
            until=NOW,
            production=ArmCounts(requests=1000, errors=10),
            challenger=ArmCounts(requests=1000, errors=20),
        )
        return detect_harm_naively(window, alpha=alpha)

    assert not harm(0.05)
    assert not harm(0.131)
    assert harm(0.132)


def test_scenarios_cover_every_target_of_the_benchmark():
    figures = [(s.max_median_s, s.max_p90_s, s.max_rollback_rate) for s in scenarios()]

    assert figures.count((60.0, 120.0, None)) == 2
    assert figures.count((15.0, None, None)) == 2
    assert figures.count((None, None, 0.01)) == 3
