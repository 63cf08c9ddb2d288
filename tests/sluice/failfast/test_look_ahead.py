"""POC-8: features must not see later rows."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from sluice.errors import ContractError
from sluice.failfast.look_ahead import find_look_ahead
from sluice.failfast.settings import LookAheadSettings

SETTINGS = LookAheadSettings()
RAW = pd.DataFrame(
    {"x": np.random.default_rng(3).normal(size=400).cumsum()},
    index=pd.date_range("2020-01-01", periods=400, name="date"),
)


def found(feature: Callable[["pd.Series[float]"], "pd.Series[float]"]) -> list[str]:
    def compute(raw: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"f": feature(raw["x"]), "target": raw["x"].shift(-1)}).dropna()

    return [f.column for f in find_look_ahead(compute, RAW, ("f",), settings=SETTINGS, seed=0)]


@pytest.mark.parametrize(
    "feature",
    [
        lambda x: x,
        lambda x: x.shift(3),
        lambda x: x.rolling(20).mean(),
        lambda x: x.ewm(span=10).std(),
        lambda x: (x - x.expanding().mean()) / x.expanding().std(),
    ],
)
def test_causal_features_are_left_alone(feature) -> None:
    assert found(feature) == []


@pytest.mark.parametrize(
    "feature",
    [
        lambda x: x.shift(-1),
        lambda x: x.shift(-5),
        lambda x: x.rolling(5, center=True).mean(),
        lambda x: (x - x.mean()) / x.std(),
        lambda x: x.rank(pct=True),
        lambda x: x[::-1].ewm(span=5).mean()[::-1],
    ],
)
def test_features_that_see_later_rows_are_named(feature) -> None:
    assert found(feature) == ["f"]


def test_a_leak_in_some_rows_is_found_by_more_cuts() -> None:
    def compute(raw: pd.DataFrame) -> pd.DataFrame:
        x = raw["x"]
        return raw.assign(f=x.where(np.arange(len(x)) % 4 != 0, x.shift(-1))).dropna()

    many = LookAheadSettings(cut_shares=tuple(np.linspace(0.3, 0.9, 40).tolist()))

    assert find_look_ahead(compute, RAW, ("f",), settings=many, seed=0)


def test_size_and_place_of_the_change_are_told() -> None:
    def compute(raw: pd.DataFrame) -> pd.DataFrame:
        return raw.assign(leak=raw["x"].shift(-1), clean=raw["x"].diff()).dropna()

    (leak,) = find_look_ahead(compute, RAW, ("leak", "clean"), settings=SETTINGS, seed=0)

    assert leak.column == "leak"
    assert leak.change > 0.1
    assert leak.row in {str(RAW.index[int(400 * s) - 1]) for s in SETTINGS.cut_shares}


def test_nothing_to_compare_is_no_evidence() -> None:
    def late(raw: pd.DataFrame) -> pd.DataFrame:
        return raw.assign(f=raw["x"].shift(-1)).iloc[390:]

    with pytest.raises(ContractError, match="compared were 0"):
        find_look_ahead(late, RAW, ("f",), settings=SETTINGS, seed=0)


def test_a_workload_that_refuses_short_tables_is_asked_with_longer_ones() -> None:
    def picky(raw: pd.DataFrame) -> pd.DataFrame:
        if len(raw) < 300:
            raise ContractError("too short", fix="more")
        return raw.assign(f=(raw["x"] - raw["x"].mean()) > 0)

    assert [f.column for f in find_look_ahead(picky, RAW, ("f",), settings=SETTINGS, seed=0)] == [
        "f"
    ]


def test_renumbered_rows_are_refused() -> None:
    def renumber(raw: pd.DataFrame) -> pd.DataFrame:
        return raw.assign(f=raw["x"]).reset_index(drop=True)

    with pytest.raises(ContractError, match="keep the index labels"):
        find_look_ahead(renumber, RAW, ("f",), settings=SETTINGS, seed=0)
