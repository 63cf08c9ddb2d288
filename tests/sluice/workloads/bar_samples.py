"""Synthetic bars for tests."""

import numpy as np
import pandas as pd


def random_bars(rows: int, *, seed: int = 0) -> pd.DataFrame:
    """Return valid bars with a periodic volatility."""
    rng = np.random.default_rng(seed)
    volatility = 0.01 * np.exp(0.5 * np.sin(np.arange(rows) / 40))
    close = 100 * np.exp(np.cumsum(volatility * rng.normal(size=rows)))
    open_price = close * np.exp(0.5 * volatility * rng.normal(size=rows))
    spread = volatility * np.abs(rng.normal(size=(2, rows)))
    return pd.DataFrame(
        {
            "open": open_price,
            "high": np.maximum(open_price, close) * np.exp(spread[0]),
            "low": np.minimum(open_price, close) * np.exp(-spread[1]),
            "close": close,
            "volume": np.round(rng.lognormal(10, 0.5, rows)),
        },
        index=pd.date_range("2001-01-01", periods=rows, freq="D", name="date"),
    )


def flat_bars(rows: int) -> pd.DataFrame:
    """Return bars with a constant price and no volume."""
    index = pd.date_range("2001-01-01", periods=rows, freq="D", name="date")
    bars = pd.DataFrame(50.0, index, ["open", "high", "low", "close"])
    return bars.assign(volume=0.0)
