"""The HAR baseline (Corsi 2009)."""

import numpy as np
import pandas as pd
import pytest

from sluice.base.errors import ContractError, SettingsError
from sluice.workloads.har import HarSettings, har_forecast

SETTINGS = HarSettings()


def test_a_month_not_longer_than_a_week_is_rejected():
    with pytest.raises(SettingsError, match="month_rows must exceed week_rows, got 5 and 5"):
        HarSettings.parse({"week_rows": 5, "month_rows": 5}, where="test")


def simulate_har(rows: int, *, noise: float, seed: int = 0) -> pd.Series:
    """Return a series that follows HAR with weights 0.1, 0.4, 0.3, 0.2."""
    rng = np.random.default_rng(seed)
    x = list(rng.normal(size=22))
    for _ in range(rows):
        x.append(
            0.1
            + 0.4 * x[-1]
            + 0.3 * sum(x[-5:]) / 5
            + 0.2 * sum(x[-22:]) / 22
            + noise * rng.normal()
        )
    return pd.Series(x)


def test_noiseless_har_process_is_forecast_exactly():
    x = simulate_har(60, noise=0.0)
    target = x.shift(-1)

    forecast = har_forecast(
        x, target, train_rows=np.arange(50), test_rows=np.arange(55, 80), settings=SETTINGS
    )

    np.testing.assert_allclose(forecast, target.iloc[55:80], atol=1e-9)


def test_forecast_equals_the_normal_equations():
    x = simulate_har(300, noise=1.0)
    target = x.shift(-1)
    values = x.tolist()

    def row(t: int) -> list[float]:
        return [1.0, values[t], sum(values[t - 4 : t + 1]) / 5, sum(values[t - 21 : t + 1]) / 22]

    design = np.array([row(t) for t in range(21, 200)])
    weights = np.linalg.solve(design.T @ design, design.T @ target.to_numpy()[21:200])

    forecast = har_forecast(
        x, target, train_rows=np.arange(200), test_rows=np.arange(250, 300), settings=SETTINGS
    )

    np.testing.assert_allclose(forecast, [row(t) @ weights for t in range(250, 300)])


def test_forecast_does_not_depend_on_later_rows():
    x = simulate_har(300, noise=1.0)
    other = x.copy()
    other.iloc[260:] = 50.0
    rows = {"train_rows": np.arange(200), "test_rows": np.arange(240, 260), "settings": SETTINGS}

    before = har_forecast(x, x.shift(-1), **rows)
    after = har_forecast(other, other.shift(-1), **rows)

    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [((0, 24), (50, 60), "got 3 train rows"), ((0, 40), (15, 30), "6 test rows without it")],
)
def test_too_little_history_is_rejected(train, test, message):
    x = simulate_har(60, noise=1.0)

    with pytest.raises(ContractError, match=message):
        har_forecast(
            x,
            x.shift(-1),
            train_rows=np.arange(*train),
            test_rows=np.arange(*test),
            settings=SETTINGS,
        )
