"""Drift error rates at reduced size: false alarms stay low where textbook tests fail (ROLL-3)."""

import pytest

from sluice.bench.drift.error_rates import DriftScenario, measure_drift, measure_speed
from sluice.bench.drift.table import rate_table, reaches_targets
from sluice.bench.gate.error_rates import Rate


def measure_rates(rho: float, *, references: int, num_columns: int = 3):
    scenario = DriftScenario(rho=rho, num_columns=num_columns, reference_rows=3000)
    (cell,) = measure_drift([scenario], num_references=references, seed=3, num_processes=1)
    return cell


@pytest.mark.slow
@pytest.mark.parametrize("rho", [pytest.param(0.0, marks=pytest.mark.exhaustive), 0.8])
def test_false_alarms_stay_low_and_a_shift_of_half_a_sigma_is_detected(rho):
    cell = measure_rates(rho, references=8)

    assert cell.false_alarms.total == 80
    assert (
        cell.false_alarms.rate <= 0.1
    )  # nominal 3 % of 80, plus a margin for chance (1 of 100 runs)
    assert cell.power.rate >= min(0.98, 0.8 * cell.oracle_power)
    assert cell.naive_ks.rate > 0.6 or rho == 0
    assert reaches_targets(cell)


@pytest.mark.exhaustive
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_false_alarms_stay_low_with_many_columns(rho):
    cell = measure_rates(rho, references=60, num_columns=20)

    assert cell.false_alarms.rate <= 0.06
    assert cell.power.rate >= 0.85 * cell.oracle_power


def test_oracle_power_falls_with_dependence_and_number_of_columns():
    single_column = DriftScenario(rho=0.0, num_columns=1)

    def power(scenario):
        (cell,) = [
            measure_rates(0.0, references=1, num_columns=1).model_copy(
                update={"scenario": scenario}
            )
        ]
        return cell.oracle_power

    assert power(single_column) > 0.999
    assert power(DriftScenario(rho=0.8, num_columns=50)) < power(
        DriftScenario(rho=0.8, num_columns=1)
    )


def test_rate_significantly_beyond_its_target_misses_it():
    cell = measure_rates(0.0, references=1, num_columns=1)
    too_many_alarms = {"false_alarms": Rate(count=20, total=100)}
    low_power = {"power": Rate(count=50, total=100)}

    assert reaches_targets(cell)
    assert not reaches_targets(cell.model_copy(update=too_many_alarms))
    assert not reaches_targets(cell.model_copy(update=low_power))
    assert rate_table([cell]).row_count == 1


def test_building_the_reference_takes_longer_than_judging_a_window():
    build_s, judge_s = measure_speed(
        num_rows=2000, num_columns=3, reference_rows=500, seed=0, threads=1
    )

    assert build_s > judge_s > 0


def test_power_target_is_limited_by_the_power_of_the_oracle():
    scenario = DriftScenario(rho=0.9, num_columns=50, window_rows=200)
    cell = measure_rates(0.0, references=1, num_columns=1).model_copy(update={"scenario": scenario})
    assert cell.oracle_power < 0.9

    def is_red(power):
        changed = cell.model_copy(update={"power": Rate(count=round(100 * power), total=100)})
        (text,) = rate_table([changed]).columns[4].cells
        return "red" in str(text.style)

    assert not is_red(cell.oracle_power)
    assert is_red(0.5 * cell.oracle_power)
