"""POC-8: features must not use later rows."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from sluice.base.errors import ContractError
from sluice.config.poc_settings import LookAheadSettings, PocSettings
from sluice.failfast.data.look_ahead import check_look_ahead, find_look_ahead
from sluice.workloads.bars import BarsWorkload
from tests.sluice.workloads.bar_samples import random_bars
from tests.support.echo import Echo, FutureFeature
from tests.support.relative_timing import relative_duration

SETTINGS = LookAheadSettings()
RAW = pd.DataFrame(
    {"x": np.random.default_rng(3).normal(size=400).cumsum()},
    index=pd.date_range("2020-01-01", periods=400, name="date"),
)
WITH_GAPS = RAW.mask(np.random.default_rng(4).random(RAW.shape) < 0.1)
Feature = Callable[["pd.Series[float]"], "pd.Series[float]"]


def find_leaking_columns(feature: Feature, *, raw: pd.DataFrame = RAW, seed: int = 0) -> list[str]:
    def compute(raw: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"f": feature(raw["x"]), "target": raw["x"].shift(-1)}).dropna()

    leaks = find_look_ahead(compute, raw, ("f",), settings=SETTINGS, seed=seed)
    return [leak.column for leak in leaks]


CAUSAL = [
    lambda x: x,
    lambda x: x.shift(3),
    lambda x: x.rolling(20).mean(),
    lambda x: x.rolling(20).corr(x.shift(1)),
    lambda x: x.ewm(span=10).std(),
    lambda x: (x - x.expanding().mean()) / x.expanding().std(),
    lambda x: x.ffill(),
    lambda x: np.log(x.abs() + 1e9),
    lambda x: x.astype("float32").cumsum(),
    lambda x: x * 0 + 3,
    lambda x: x > 0,
    lambda x: x.diff().astype("Float32"),
    lambda x: pd.cut(x, [-1e9, -1, 1, 1e9], labels=["low", "mid", "high"]).astype(str),
]


@pytest.mark.parametrize("feature", CAUSAL)
@pytest.mark.parametrize("raw", [RAW, RAW.reset_index(drop=True), WITH_GAPS])
def test_causal_features_are_not_reported(feature: Feature, raw: pd.DataFrame) -> None:
    assert find_leaking_columns(feature, raw=raw) == []


@pytest.mark.parametrize(
    "feature",
    [
        lambda x: x.shift(-1),
        lambda x: x.shift(-5),
        lambda x: x.shift(-1).fillna(0.0),
        lambda x: x.rolling(5, center=True).mean(),
        lambda x: (x - x.mean()) / x.std(),
        lambda x: (x - x.min()) / (x.max() - x.min()),
        lambda x: x.rank(pct=True),
        lambda x: x > x.quantile(0.7),
        lambda x: x - x.groupby(np.arange(len(x)) % 7).transform("mean"),
        lambda x: x[::-1].ewm(span=5).mean()[::-1],
        lambda x: x.rolling(20).mean().bfill(),
        lambda x: pd.Series(np.gradient(x), x.index),
        lambda x: x / len(x),
        lambda x: (x.shift(-1) > x).map({True: "up", False: "down"}),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_features_that_use_later_rows_are_reported(feature: Feature, seed: int) -> None:
    assert find_leaking_columns(feature, seed=seed) == ["f"]
    assert find_leaking_columns(feature, raw=RAW.reset_index(drop=True), seed=seed) == ["f"]


@pytest.mark.parametrize("fill", [lambda x: x.bfill(), lambda x: x.interpolate()])
def test_gaps_filled_from_later_rows_are_found(fill: Feature) -> None:
    assert find_leaking_columns(fill, raw=WITH_GAPS) == ["f"]


@pytest.mark.parametrize("rows", [3, 20])
def test_a_leak_in_only_the_first_or_last_rows_is_found(rows: int) -> None:
    assert find_leaking_columns(
        lambda x: x.where(np.arange(len(x)) < len(x) - rows, x.shift(-1))
    ) == ["f"]
    assert find_leaking_columns(lambda x: x.where(np.arange(len(x)) >= rows, x.shift(-1))) == ["f"]


def test_a_leak_in_some_rows_is_found_with_more_cuts() -> None:
    def compute(raw: pd.DataFrame) -> pd.DataFrame:
        x = raw["x"]
        return raw.assign(f=x.where(np.arange(len(x)) % 4 != 0, x.shift(-1))).dropna()

    settings = LookAheadSettings(cut_shares=tuple(np.linspace(0.3, 0.9, 40).tolist()))

    assert find_look_ahead(compute, RAW, ("f",), settings=settings, seed=0)


def test_size_and_row_of_the_change_are_reported() -> None:
    def compute(raw: pd.DataFrame) -> pd.DataFrame:
        return raw.assign(leak=raw["x"].shift(-1), clean=raw["x"].diff()).dropna()

    (leak,) = find_look_ahead(compute, RAW, ("leak", "clean"), settings=SETTINGS, seed=0)

    assert leak.column == "leak"
    assert leak.change > 0.1
    cuts = [int(400 * share) for share in SETTINGS.cut_shares]
    assert leak.row in {str(RAW.index[cut - 1]) for cut in [*cuts, 2, 398]}


def test_first_changed_row_is_not_later_for_a_longer_look_ahead() -> None:
    raw = RAW.diff().dropna()
    first_rows = []
    for reach in (1, 4, 12):

        def compute(raw: pd.DataFrame, reach: int = reach) -> pd.DataFrame:
            return raw.assign(f=raw["x"].rolling(reach + 1).mean().shift(-reach)).dropna()

        one_cut = LookAheadSettings(cut_shares=(0.5,))
        (leak,) = find_look_ahead(compute, raw, ("f",), settings=one_cut, seed=0)
        first_rows.append(leak.row)

    assert first_rows == sorted(first_rows, reverse=True)


def test_given_features_save_one_computation() -> None:
    calls: list[int] = []

    def compute(raw: pd.DataFrame) -> pd.DataFrame:
        calls.append(len(raw))
        return raw.assign(f=raw["x"].diff()).dropna()

    find_look_ahead(compute, RAW, ("f",), settings=SETTINGS, seed=0)
    num_calls = len(calls)
    calls.clear()
    find_look_ahead(compute, RAW, ("f",), settings=SETTINGS, seed=0, features=compute(RAW))

    assert num_calls == len(calls) == 8
    assert sum(calls[1:]) < 5.5 * len(RAW)


def test_rows_with_the_same_time_may_use_each_other() -> None:
    days = pd.date_range("2020-01-01", periods=60, name="date").repeat(9)
    raw = pd.DataFrame({"x": np.random.default_rng(0).normal(size=len(days))}, index=days)

    def rank_of_the_day(raw: pd.DataFrame) -> pd.DataFrame:
        return raw.assign(f=raw["x"].groupby(level=0).rank())

    def next_day(raw: pd.DataFrame) -> pd.DataFrame:
        return raw.assign(f=raw["x"].groupby(raw.groupby(level=0).cumcount()).shift(-1)).dropna()

    assert find_look_ahead(rank_of_the_day, raw, ("f",), settings=SETTINGS, seed=0) == ()
    assert find_look_ahead(next_day, raw, ("f",), settings=SETTINGS, seed=0)


def test_dates_define_the_order_of_unsorted_rows() -> None:
    stacked = pd.concat(
        [RAW.assign(who=name, x=RAW["x"] * scale) for name, scale in (("a", 1), ("b", -2))]
    )

    def mean_of_the_day(raw: pd.DataFrame) -> pd.DataFrame:
        return raw.assign(f=raw["x"].groupby(level=0).transform("mean"))

    def next_day(raw: pd.DataFrame) -> pd.DataFrame:
        return raw.assign(f=raw.groupby("who")["x"].shift(-1)).dropna()

    assert find_look_ahead(mean_of_the_day, stacked, ("f",), settings=SETTINGS, seed=0) == ()
    assert find_look_ahead(next_day, stacked, ("f",), settings=SETTINGS, seed=0)


def test_a_newest_first_table_is_ordered_by_its_dates() -> None:
    newest_first = RAW.iloc[::-1]

    def causal(raw: pd.DataFrame) -> pd.DataFrame:
        return raw.sort_index().assign(f=lambda t: t["x"].diff()).dropna()

    def leaky(raw: pd.DataFrame) -> pd.DataFrame:
        return raw.sort_index().assign(f=lambda t: t["x"].shift(-1)).dropna()

    assert find_look_ahead(causal, newest_first, ("f",), settings=SETTINGS, seed=0) == ()
    assert find_look_ahead(leaky, newest_first, ("f",), settings=SETTINGS, seed=0)


def test_added_and_removed_rows_are_not_compared() -> None:
    def rows_below_the_last(raw: pd.DataFrame) -> pd.DataFrame:
        return raw.assign(f=raw["x"])[raw["x"] <= raw["x"].iloc[-1]]

    assert find_look_ahead(rows_below_the_last, RAW, ("f",), settings=SETTINGS, seed=0) == ()


def test_lack_of_comparable_rows_raises() -> None:
    def only_last_row(raw: pd.DataFrame) -> pd.DataFrame:
        return raw.assign(f=raw["x"].shift(-1)).iloc[399:]

    with pytest.raises(ContractError, match="no row could be compared"):
        find_look_ahead(only_last_row, RAW, ("f",), settings=SETTINGS, seed=0)


@pytest.mark.parametrize("error", [ContractError("too short", fix="more"), ValueError("short")])
def test_longer_tables_are_used_if_short_ones_are_rejected(error: Exception) -> None:
    def compute(raw: pd.DataFrame) -> pd.DataFrame:
        if len(raw) < 400:
            raise error
        return raw.assign(f=raw["x"].shift(-1)).dropna()

    (leak,) = find_look_ahead(compute, RAW, ("f",), settings=SETTINGS, seed=0)

    assert leak.column == "f"


def test_a_reset_index_is_rejected() -> None:
    def renumber(raw: pd.DataFrame) -> pd.DataFrame:
        return raw.assign(f=raw["x"]).reset_index(drop=True)

    with pytest.raises(ContractError, match="keep the index labels"):
        find_look_ahead(renumber, RAW, ("f",), settings=SETTINGS, seed=0)


def test_duration_for_100_columns_is_bounded() -> None:
    values = np.random.default_rng(0).normal(size=(5000, 100)).cumsum(axis=0)
    raw = pd.DataFrame(values, columns=[f"c{i}" for i in range(100)])

    def compute(raw: pd.DataFrame) -> pd.DataFrame:
        return raw.diff().dropna()

    def find() -> object:
        return find_look_ahead(compute, raw, tuple(raw), settings=SETTINGS, seed=0)

    assert find() == ()
    assert relative_duration(find, lambda: [compute(raw) for _ in range(10)]) < 15  # 3


def run_check(workload: Echo, seed: int = 0):
    raw = workload.load_rows()
    frame = workload.compute_features(raw)
    return check_look_ahead(workload, raw, frame, PocSettings(), seed=seed)


def test_a_healthy_workload_passes_and_reports_counts() -> None:
    finding = run_check(Echo())

    assert finding.outcome == "pass"
    assert dict(finding.numbers) == {
        "features": 1,
        "features_compared": 1,
        "rows": 900,
        "comparisons": 7,
        "seeing_later_rows": 0,
    }
    assert "sample" not in finding.summary


def test_a_table_without_the_declared_features_is_insufficient() -> None:
    workload = Echo()
    raw = workload.load_rows()
    frame = workload.compute_features(raw).drop(columns=list(workload.feature_columns))

    finding = check_look_ahead(workload, raw, frame, PocSettings(), seed=0)

    assert finding.outcome == "insufficient"
    assert "none of the declared feature columns" in finding.summary


def test_a_future_feature_fails_with_column_row_and_fix() -> None:
    finding = run_check(FutureFeature())

    assert (finding.outcome, finding.fault) == ("fail", "look-ahead")
    assert "'call' at row" in finding.summary
    assert all(finding.response)


def test_bars_have_no_look_ahead() -> None:
    workload = BarsWorkload()
    raw = random_bars(900)
    frame = workload.compute_features(raw)

    finding = check_look_ahead(workload, raw, frame, PocSettings(), seed=1)

    assert (finding.outcome, finding.numbers["features"]) == ("pass", 9)


def test_nondeterministic_features_are_reported_as_such() -> None:
    class Random(Echo):
        def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
            noise = np.random.default_rng().normal(size=len(raw))
            return super().compute_features(raw.assign(call=raw["call"] + noise))

    finding = run_check(Random())

    assert finding.outcome == "fail"
    assert "called again with the same rows" in finding.summary


def test_a_value_that_becomes_null_is_reported_as_empty() -> None:
    class NullIfLaterValueIsLow(Echo):
        def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
            frame = super().compute_features(raw)
            later = raw["call"].shift(-40).reindex(frame.index)
            return frame.assign(call=frame["call"].where(later > -9))

    finding = run_check(NullIfLaterValueIsLow())

    assert finding.fault == "look-ahead"
    assert finding.numbers["largest_change"] == "empty"


def test_a_reset_index_is_named_as_likely_cause() -> None:
    class Renumbers(Echo):
        def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
            return super().compute_features(raw).iloc[3:].reset_index(drop=True)

    assert "resets the index" in run_check(Renumbers()).response[0]


def test_a_workload_without_feature_columns_passes() -> None:
    class Files(Echo):
        feature_columns = ()

    workload = Files()
    raw = workload.load_rows()
    outcome = check_look_ahead(workload, raw, workload.compute_features(raw), PocSettings(), seed=0)

    assert outcome.outcome == "pass"
    assert "No feature column is declared" in outcome.summary


def test_rejection_of_all_changed_tables_is_insufficient_and_quotes_the_error() -> None:
    class AcceptsOnlyLoadedRows(Echo):
        def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
            if not raw["call"].equals(self.load_rows()["call"]):
                raise ValueError("not the rows I know")
            return super().compute_features(raw)

    finding = run_check(AcceptsOnlyLoadedRows())

    assert finding.outcome == "insufficient"
    assert "not the rows I know" in finding.summary
    assert finding.response[1]
