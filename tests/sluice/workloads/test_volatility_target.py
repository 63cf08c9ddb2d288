"""Position size that targets a given volatility."""

import math

import numpy as np
import pytest

from sluice.workloads.volatility_target import PositionSettings, volatility_position

SETTINGS = PositionSettings(target_volatility=0.16, max_leverage=2.0, rows_per_year=256)


def test_position_is_target_over_volatility_up_to_max_leverage():
    # 16 % a year is 1 % a day with 256 days a year.
    position = volatility_position(np.array([0.01, 0.02, 0.005, 0.001, 1e9]), SETTINGS)

    np.testing.assert_allclose(position, [1.0, 0.5, 2.0, 2.0, 0.0], atol=1e-9)


def test_exact_forecast_gives_the_target_volatility():
    rng = np.random.default_rng(0)
    volatility = rng.uniform(0.006, 0.03, 200_000)
    returns = volatility_position(volatility, SETTINGS) * volatility * rng.normal(size=200_000)

    assert returns.std() * math.sqrt(256) == pytest.approx(0.16, rel=0.01)
