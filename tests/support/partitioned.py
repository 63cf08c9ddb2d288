"""Workloads whose features are computed one partition at a time."""

import numpy as np
import pandas as pd

from sluice.workloads.partitions import KeyPartitions, PeriodPartitions
from sluice.workloads.workload import Workload


def daily_rows(num_rows: int = 400, *, seed: int = 0) -> pd.DataFrame:
    """Return a row with one price for each weekday."""
    dates = pd.bdate_range("2020-01-01", periods=num_rows, name="date")
    return pd.DataFrame({"price": np.random.default_rng(seed).normal(size=num_rows)}, index=dates)


def rows_of_assets(num_dates: int = 60, *, seed: int = 0) -> pd.DataFrame:
    """Return three rows for each weekday, one for each asset."""
    rng = np.random.default_rng(seed)
    names = np.tile(["B", "A", "C"], num_dates)
    index = pd.DatetimeIndex(
        np.repeat(pd.bdate_range("2020-01-01", periods=num_dates), 3), name="date"
    )
    return pd.DataFrame({"asset": names, "price": rng.normal(size=3 * num_dates)}, index=index)


class Daily(Workload):
    """Features use up to 20 previous rows. The target is the price of the next row."""

    feature_columns = ("mean_20", "last")
    target_column = "next"
    feature_partitions = PeriodPartitions(period="M", look_back_rows=20)
    calls: int = 0

    def load_rows(self) -> pd.DataFrame:
        """Return 400 rows."""
        return daily_rows()

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the mean of 21 prices, the price, and the next price."""
        self.calls += 1
        price = raw["price"]
        features = {
            "mean_20": price.rolling(21).mean(),
            "last": price,
            "next": price.shift(-1),
        }
        return pd.DataFrame(features).dropna()


class Assets(Workload):
    """Features of an asset depend only on the rows of this asset."""

    feature_columns = ("mean",)
    target_column = "next"
    feature_partitions = KeyPartitions(column="asset")

    def load_rows(self) -> pd.DataFrame:
        """Return rows of three assets."""
        return rows_of_assets()

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the mean of the asset's prices so far, and the next price of the asset."""
        price = raw.groupby("asset")["price"]
        mean = price.transform(lambda prices: prices.expanding().mean())
        frame = raw.assign(mean=mean, next=price.shift(-1)).dropna()
        return frame[["asset", "mean", "next"]]


class DailyOfFile(Daily):
    """Reads the rows from ``rows.csv`` in the working folder."""

    def load_rows(self) -> pd.DataFrame:
        """Return the rows of the file."""
        return pd.read_csv("rows.csv", index_col="date", parse_dates=["date"])
