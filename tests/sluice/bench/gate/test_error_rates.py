"""STAT-3: error rates of the promotion gate at reduced size, and how they are counted."""

import dataclasses

import numpy as np
import pytest
from scipy.stats import binomtest

from sluice.bench.gate import error_rates
from sluice.bench.gate.error_rates import Rate, measure_retraining, measure_scenarios
from sluice.bench.gate.grid import full_grid, quick_grid
from sluice.bench.gate.report import (
    reaches_targets,
    retraining_reaches_target,
    retraining_table,
    scenario_table,
)
from sluice.bench.gate.resampling_speed import measure_resampling
from sluice.bench.gate.scenarios import GateScenario
from sluice.evaluation.comparison import compare
from sluice.evaluation.settings import GateSettings

SETTINGS = GateSettings()
SHORT = GateScenario(rho=0.5, num_seeds=5, num_rows=400)


def measure(*scenarios: GateScenario, simulations: int, processes: int = 1):
    return list(
        measure_scenarios(
            scenarios, SETTINGS, num_simulations=simulations, seed=1, num_processes=processes
        )
    )


@pytest.fixture(scope="module")
def quick():
    return measure(*quick_grid(), simulations=60)


@pytest.mark.slow
def test_false_promotions_and_power_reach_targets_on_a_small_grid(quick):
    false = sum(cell.false_promotions.count for cell in quick)
    power = sum(cell.power.count for cell in quick)

    # 99.9 % binomial bands of 240 simulations: 5 % nominal, and 0.75 on average.
    assert 3 <= false <= 25
    assert 0.65 * 240 <= power <= 0.86 * 240
    assert all(map(reaches_targets, quick))


@pytest.mark.slow
def test_naive_tests_promote_falsely_too_often(quick):
    false_promotion_rates = {
        name: sum(cell.naive[name].count for cell in quick) / 240 for name in quick[0].naive
    }

    assert false_promotion_rates["pooled"] > 0.25
    assert (
        min(false_promotion_rates[name] for name in ("seeds only", "blocks only", "rows only"))
        > 0.08
    )


def test_counts_equal_those_of_separate_comparisons_with_and_without_gain():
    """One comparison gives both counts; the test makes two comparisons instead."""
    effect = SHORT.oracle_effect(alpha=SETTINGS.alpha, power=0.8)
    rng = np.random.default_rng((1, 0, 0))
    false = power = 0
    for _ in range(20):
        better, reference = SHORT.draw(rng, gain=effect)
        null = dataclasses.replace(better, loss_SN=better.loss_SN + effect)
        power += compare(better, reference, SETTINGS, horizon_rows=1).passed
        false += compare(null, reference, SETTINGS, horizon_rows=1).passed

    (found,) = measure(SHORT, simulations=20)

    assert (found.false_promotions.count, found.power.count) == (false, power)
    assert power > 8


def test_counts_are_reproducible_and_complete_with_another_chunk_size(monkeypatch):
    other = SHORT.model_copy(update={"rho": 0.0})
    results = measure(SHORT, other, simulations=12)

    assert [rates.scenario for rates in results] == [SHORT, other]
    assert results == measure(SHORT, other, simulations=12)
    monkeypatch.setattr(error_rates, "_CHUNK_SIMULATIONS", 5)
    assert [cell.power.total for cell in measure(SHORT, other, simulations=12)] == [12, 12]


@pytest.mark.exhaustive
def test_counts_do_not_depend_on_the_number_of_processes(monkeypatch):
    monkeypatch.setattr(error_rates, "_CHUNK_SIMULATIONS", 5)

    assert measure(SHORT, simulations=10, processes=2) == measure(SHORT, simulations=10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "is_same_recipe", [pytest.param(True, marks=pytest.mark.exhaustive), False]
)
def test_thirty_attempts_on_one_window_share_one_alpha(is_same_recipe):
    found = measure_retraining(
        SHORT,
        GateSettings(block_length=10),  # fixed, because its estimation would take half of the time
        num_attempts=30,
        is_same_recipe=is_same_recipe,
        num_simulations=20,
        seed=1,
        num_processes=1,
    )

    # At 5 %, the probability of four or more of 20 is 2 %. At full alpha, at least a third err.
    assert found.with_shared_alpha.count <= 3
    assert found.with_full_alpha.count > found.with_shared_alpha.count + 2
    assert retraining_reaches_target(found)
    assert retraining_table([found]).row_count == 1


def test_rate_has_the_wilson_interval():
    rate = Rate(count=7, total=100)

    assert rate.interval == pytest.approx(tuple(binomtest(7, 100).proportion_ci(method="wilson")))
    assert str(rate) == "7.0 % (3.4 to 13.7)"


@pytest.mark.parametrize(
    ("false", "power", "good"), [(60, 700, True), (90, 700, False), (50, 500, False)]
)
def test_rate_significantly_beyond_its_target_misses_it(false, power, good):
    (cell,) = measure(GateScenario(num_rows=1000), simulations=1)
    rates = {
        "false_promotions": Rate(count=false, total=1000),
        "power": Rate(count=power, total=1000),
    }

    changed = cell.model_copy(update=rates)

    assert reaches_targets(changed) == good
    assert scenario_table([changed]).row_count == 1


def test_full_grid_varies_every_property_without_duplicates():
    grid = full_grid()

    assert len(set(grid)) == len(grid)
    assert {w.rho for w in grid} == {0.0, 0.3, 0.5, 0.8}
    assert {w.horizon_rows for w in grid} == {1, 5, 20}
    assert {w.num_seeds for w in grid} == {5, 8, 10}
    assert {w.tails for w in grid} == {"normal", "t3", "clustered"}
    assert all(w.num_rows >= 1000 and w.num_folds == 4 for w in grid)


def test_resampling_is_faster_than_arch_with_equal_spread():
    found = measure_resampling(num_seeds=8, num_rows=20_000, num_resamples=150, seed=0)

    assert found.own_gain_sd == pytest.approx(found.arch_gain_sd, rel=0.3)
    assert found.speedup > 2  # measured at least 30; the machine may be busy
