"""The volatility-targeted position and its ratios."""

import math

import numpy as np
import pytest

from sluice.workloads.volatility_target import (
    PositionSettings,
    sharpe,
    sortino,
    volatility_position,
)

SETTINGS = PositionSettings(target_volatility=0.16, max_leverage=2.0, rows_per_year=256)


def test_position_aims_at_the_target_and_is_capped():
    # 16 % a year is 1 % a day of 256 in the year.
    found = volatility_position(np.array([0.01, 0.02, 0.005, 0.001, 1e9]), SETTINGS)

    np.testing.assert_allclose(found, [1.0, 0.5, 2.0, 2.0, 0.0], atol=1e-9)


def test_the_position_reaches_the_target_when_the_forecast_is_right():
    rng = np.random.default_rng(0)
    volatility = rng.uniform(0.006, 0.03, 200_000)
    earned = volatility_position(volatility, SETTINGS) * volatility * rng.normal(size=200_000)

    assert earned.std() * math.sqrt(256) == pytest.approx(0.16, rel=0.01)


def test_sharpe_by_hand():
    # Mean 1, sample deviation 2.
    assert sharpe(np.array([-1.0, 1.0, 3.0]), rows_per_year=4) == pytest.approx(1 / 2 * 2)


def test_sortino_by_hand():
    # Mean 1; the squares of the losses 0 and 1 over three rows.
    found = sortino(np.array([-1.0, 1.0, 3.0]), rows_per_year=4)

    assert found == pytest.approx(1 / math.sqrt(1 / 3) * 2)


def test_ratios_do_not_change_with_the_size_of_the_position():
    returns = np.random.default_rng(1).normal(0.1, 1, 500)

    for ratio in (sharpe, sortino):
        assert ratio(returns * 7, rows_per_year=252) == pytest.approx(
            ratio(returns, rows_per_year=252)
        )


@pytest.mark.parametrize("returns", [[], [0.1], [0.1, 0.1]])
def test_a_ratio_that_is_not_defined_is_not_a_number(returns):
    assert math.isnan(sharpe(np.array(returns), rows_per_year=252))
    assert math.isnan(sortino(np.array(returns), rows_per_year=252))


def test_returns_that_are_not_numbers_are_not_hidden():
    assert math.isnan(sharpe(np.array([0.1, np.nan, -0.2]), rows_per_year=252))
    assert math.isnan(sortino(np.array([0.1, np.nan, -0.2]), rows_per_year=252))
