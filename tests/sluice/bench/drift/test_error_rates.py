"""Error rates at reduced size: false alarms hold where the textbook's tests do not (ROLL-3)."""

import pytest

from sluice.bench.drift.error_rates import DriftScenario, measure_drift, measure_speed
from sluice.bench.drift.table import cell_table, reaches_targets
from sluice.bench.gate.error_rates import Rate


def rates(rho: float, *, references: int, num_columns: int = 3):
    world = DriftScenario(rho=rho, num_columns=num_columns, reference_rows=3000)
    (cell,) = measure_drift([world], references=references, seed=3, processes=1)
    return cell


@pytest.mark.slow
@pytest.mark.parametrize("rho", [pytest.param(0.0, marks=pytest.mark.exhaustive), 0.8])
def test_false_alarms_hold_and_half_a_sigma_is_found(rho):
    cell = rates(rho, references=8)

    assert cell.false_alarms.total == 80
    assert cell.false_alarms.rate <= 0.1  # 3 % of 80, and what chance adds in 1 of 100 runs
    assert cell.power.rate >= min(0.98, 0.8 * cell.oracle_power)
    assert cell.naive_ks.rate > 0.6 or rho == 0
    assert reaches_targets(cell)


@pytest.mark.exhaustive
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_false_alarms_of_many_columns_hold(rho):
    cell = rates(rho, references=60, num_columns=20)

    assert cell.false_alarms.rate <= 0.06
    assert cell.power.rate >= 0.85 * cell.oracle_power


def test_the_oracle_finds_less_where_rows_depend_and_columns_are_many():
    alone = DriftScenario(rho=0.0, num_columns=1)

    def power(world):
        (cell,) = [rates(0.0, references=1, num_columns=1).model_copy(update={"world": world})]
        return cell.oracle_power

    assert power(alone) > 0.999
    assert power(DriftScenario(rho=0.8, num_columns=50)) < power(
        DriftScenario(rho=0.8, num_columns=1)
    )


def test_a_rate_proven_beyond_its_figure_does_not_hold():
    cell = rates(0.0, references=1, num_columns=1)
    many = {"false_alarms": Rate(count=20, total=100)}
    blind = {"power": Rate(count=50, total=100)}

    assert reaches_targets(cell)
    assert not reaches_targets(cell.model_copy(update=many))
    assert not reaches_targets(cell.model_copy(update=blind))
    assert cell_table([cell]).row_count == 1


def test_speed_is_measured_against_a_reference_that_is_kept():
    build_s, judge_s = measure_speed(
        num_rows=2000, num_columns=3, reference_rows=500, seed=0, threads=1
    )

    assert build_s > judge_s > 0


def test_power_is_red_only_below_its_target_which_the_oracle_limits():
    world = DriftScenario(rho=0.9, num_columns=50, window_rows=200)
    cell = rates(0.0, references=1, num_columns=1).model_copy(update={"world": world})
    assert cell.oracle_power < 0.9

    def is_red(power):
        enough = cell.model_copy(update={"power": Rate(count=round(100 * power), total=100)})
        (text,) = cell_table([enough]).columns[4].cells
        return "red" in str(text.style)

    assert not is_red(cell.oracle_power)
    assert is_red(0.5 * cell.oracle_power)
