"""Workloads whose features are computed one partition at a time."""

import numpy as np
import pandas as pd

from sluice.workloads.partitions import KeyPartitions, PeriodPartitions
from sluice.workloads.workload import Workload


def daily_rows(count: int = 400, *, seed: int = 0) -> pd.DataFrame:
    """Return daily rows with one number and gaps at weekends."""
    dates = pd.bdate_range("2020-01-01", periods=count, name="date")
    return pd.DataFrame({"price": np.random.default_rng(seed).normal(size=count)}, index=dates)


def rows_of_assets(dates: int = 60, *, seed: int = 0) -> pd.DataFrame:
    """Return daily rows of three assets, one after another on each day."""
    rng = np.random.default_rng(seed)
    names = np.tile(["B", "A", "C"], dates)
    index = pd.DatetimeIndex(np.repeat(pd.bdate_range("2020-01-01", periods=dates), 3), name="date")
    return pd.DataFrame({"asset": names, "price": rng.normal(size=3 * dates)}, index=index)


class Daily(Workload):
    """Features look 20 rows back, the target one row ahead."""

    feature_columns = ("mean_20", "last")
    target_column = "next"
    feature_partitions = PeriodPartitions(period="M", look_back_rows=20)
    calls: int = 0

    def load_rows(self) -> pd.DataFrame:
        """Return 400 rows."""
        return daily_rows()

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return a mean of 21 prices, the price, and the next one."""
        self.calls += 1
        price = raw["price"]
        features = {
            "mean_20": price.rolling(21).mean(),
            "last": price,
            "next": price.shift(-1),
        }
        return pd.DataFrame(features).dropna()


class Assets(Workload):
    """Features of an asset depend on its own rows."""

    feature_columns = ("mean",)
    target_column = "next"
    feature_partitions = KeyPartitions(column="asset")

    def load_rows(self) -> pd.DataFrame:
        """Return rows of three assets."""
        return rows_of_assets()

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the running mean of an asset's prices, and its next price."""
        price = raw.groupby("asset")["price"]
        mean = price.transform(lambda prices: prices.expanding().mean())
        frame = raw.assign(mean=mean, next=price.shift(-1)).dropna()
        return frame[["asset", "mean", "next"]]


class DailyOfFile(Daily):
    """The rows of ``rows.csv`` in the working folder."""

    def load_rows(self) -> pd.DataFrame:
        """Return the rows of the file."""
        return pd.read_csv("rows.csv", index_col="date", parse_dates=["date"])
