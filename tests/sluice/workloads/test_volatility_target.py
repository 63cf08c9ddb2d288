"""The volatility-targeted position."""

import math

import numpy as np
import pytest

from sluice.workloads.volatility_target import PositionSettings, volatility_position

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
