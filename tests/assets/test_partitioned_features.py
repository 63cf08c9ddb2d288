"""Features are computed by partition, and only changed partitions are recomputed (ROWS-3)."""

import numpy as np
import pandas as pd
import pytest

from sluice.assets import partitioned_features
from sluice.assets.partitioned_features import (
    PartitionedFeatures,
    WorkloadSource,
    compute_partitioned_features,
)
from sluice.assets.resources import ignore_progress
from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError, SluiceError
from sluice.cluster.settings import ComputeSettings
from sluice.workloads.partitions import KeyPartitions, PeriodPartitions
from tests.support.partitioned import Assets, Daily, daily_rows, rows_of_assets


def compute_all(workload, raw, store, previous=(), **settings) -> PartitionedFeatures:
    cls = type(workload)
    return compute_partitioned_features(
        workload,
        raw,
        previous,
        source=WorkloadSource(path=f"{cls.__module__}:{cls.__name__}", settings={}, sys_path=()),
        compute=ComputeSettings(**settings),
        store=store,
        progress=ignore_progress,
    )


@pytest.fixture
def store(tmp_path):
    return ArtifactStore(tmp_path / "artifacts")


@pytest.mark.parametrize("period", ["D", "W", "M", "Q", "Y"])
def test_period_partitions_give_the_features_of_all_rows(store, period):
    workload = Daily()
    workload.feature_partitions = PeriodPartitions(period=period, look_back_rows=20)
    raw = daily_rows(120)
    expected = workload.compute_features(raw)

    found = compute_all(workload, raw, store)

    # A running mean of pandas depends on its first row in the last bits.
    pd.testing.assert_frame_equal(found.frame, expected, check_freq=False, rtol=1e-12, atol=1e-14)
    assert found.frame[["last", "next"]].equals(expected[["last", "next"]])
    assert len(found.partitions) == len(set(raw.index.to_period(period)))


def test_key_partitions_give_the_features_of_all_rows_in_their_order(store):
    raw = rows_of_assets()

    found = compute_all(Assets(), raw, store)

    assert found.frame.equals(Assets().compute_features(raw))
    assert [partition.name for partition in found.partitions] == ["A", "B", "C"]


def test_rows_with_equal_labels_count_as_one_row_of_context(store):
    class PerDay(Assets):
        horizon_rows = 1
        feature_partitions = PeriodPartitions(period="M", look_back_rows=3)

        def compute_features(self, raw):
            price = raw.groupby("asset")["price"]
            mean = price.transform(lambda prices: prices.rolling(4).apply(np.sum, raw=True))
            return raw.assign(mean=mean, next=price.shift(-1)).dropna()

    raw = rows_of_assets()

    assert compute_all(PerDay(), raw, store, workers=1).frame.equals(PerDay().compute_features(raw))


def test_integer_labels_are_partitioned_by_a_number(store):
    workload = Daily()
    workload.feature_partitions = PeriodPartitions(period=100, look_back_rows=20)
    raw = daily_rows(250).reset_index(drop=True)

    found = compute_all(workload, raw, store)

    assert [partition.name for partition in found.partitions] == ["0", "100", "200"]
    assert found.frame.index.equals(workload.compute_features(raw).index)


def test_only_partitions_with_changed_rows_or_context_are_recomputed(store):
    workload, raw = Daily(), daily_rows()
    first = compute_all(workload, raw, store)
    changed = raw.copy()
    # The row is in June, among the 20 rows before July, and not the one row after May.
    changed.loc["2020-06-30", "price"] += 1.0

    workload.calls = 0
    same = compute_all(workload, raw, store, first.partitions)
    assert (workload.calls, same.num_reused) == (0, len(first.partitions))
    assert same.frame.equals(first.frame)

    again = compute_all(workload, changed, store, first.partitions)
    recomputed = [
        after.name
        for before, after in zip(first.partitions, again.partitions, strict=True)
        if before.raw != after.raw
    ]
    assert recomputed == ["2020-06", "2020-07"]
    assert workload.calls == 4  # each of the two a second time with a larger context
    assert again.frame.equals(compute_all(workload, changed, store).frame)

    more = compute_all(workload, daily_rows(401).iloc[:401], store, first.partitions)
    assert len(more.frame) == len(first.frame) + 1


def test_partition_with_a_damaged_artifact_is_recomputed(store):
    workload, raw = Daily(), daily_rows()
    first = compute_all(workload, raw, store)
    store.path(first.partitions[3].table.artifact).write_bytes(b"damaged")

    again = compute_all(workload, raw, store, first.partitions)

    assert again.num_reused == len(first.partitions) - 1
    assert again.frame.equals(first.frame)


@pytest.mark.slow
def test_worker_processes_give_identical_features(store, monkeypatch):
    workload, raw = Daily(), daily_rows()
    in_process = compute_all(workload, raw, store, workers=1)
    monkeypatch.setattr(partitioned_features, "MIN_POOL_S", 0.0)
    workload.calls = 0

    found = compute_all(workload, raw, store, workers=2)

    assert workload.calls == 6  # three checked partitions; the workers computed the others
    assert found.frame.equals(in_process.frame)
    assert found.partitions == in_process.partitions


@pytest.mark.parametrize(
    ("declared", "changes", "message"),
    [
        (
            PeriodPartitions(period="M", look_back_rows=19),
            {},
            "more rows, the partition has .* feature",
        ),
        (
            PeriodPartitions(period="M", look_back_rows=20),
            {"last": lambda raw: raw["price"] / raw["price"].std()},
            "only on its own rows, 20 earlier and 1 later rows .*"
            "'last' at row 2020-01-29 .*changes by",
        ),
        (
            PeriodPartitions(period="M", look_back_rows=20),
            {"last": lambda raw: raw["price"].ewm(span=60).mean()},
            "'last' at",
        ),
        (
            PeriodPartitions(period="M", look_back_rows=20),
            {"next": lambda raw: raw["price"].shift(-5).ffill()},
            "'next' at",
        ),
    ],
)
def test_features_that_depend_on_other_rows_are_refused(store, declared, changes, message):
    class Wrong(Daily):
        feature_partitions = declared

        def compute_features(self, raw):
            columns = {name: make(raw) for name, make in changes.items()}
            return super().compute_features(raw).assign(**columns)

    with pytest.raises(ContractError, match=message) as refused:
        compute_all(Wrong(), daily_rows(), store)
    assert "larger context" in str(refused.value.fix)


def test_feature_across_keys_is_refused(store):
    class Ranked(Assets):
        def compute_features(self, raw):
            frame = super().compute_features(raw)
            return frame.assign(mean=frame.groupby(level=0)["mean"].rank())

    with pytest.raises(
        ContractError, match=r"rows with its partition key\. Computed from more rows, 'mean' at"
    ):
        compute_all(Ranked(), rows_of_assets(), store)


@pytest.mark.parametrize(
    ("declared", "raw", "message"),
    [
        (KeyPartitions(column="ticker"), rows_of_assets(), "'ticker' .* but is missing"),
        (
            KeyPartitions(column="asset"),
            rows_of_assets().mask(lambda raw: raw["asset"] == "A"),
            "'asset' .* has missing values",
        ),
        (
            KeyPartitions(column="asset"),
            pd.concat([rows_of_assets(), rows_of_assets().iloc[:1]]),
            "'B' has 2020-01-01 00:00:00 twice",
        ),
        (
            PeriodPartitions(period=10, look_back_rows=0),
            rows_of_assets(),
            "A period of 10 is a number for integers, but the index labels of the rows are",
        ),
        (
            PeriodPartitions(period="M", look_back_rows=0),
            rows_of_assets().iloc[::-1],
            "must be sorted by their index labels",
        ),
    ],
)
def test_rows_that_cannot_be_partitioned_are_refused(store, declared, raw, message):
    workload = Assets()
    workload.feature_partitions = declared

    with pytest.raises(ContractError, match=message):
        compute_all(workload, raw, store)


def test_changed_labels_or_partition_dependent_columns_are_refused(store):
    class Renumbered(Daily):
        def compute_features(self, raw):
            frame = super().compute_features(raw)
            return frame.set_index(frame.index + pd.Timedelta(hours=1))

    class Typed(Daily):
        def compute_features(self, raw):
            frame = super().compute_features(raw)
            return frame.astype({"last": "float32"}) if raw.index[0].year == 2021 else frame

    class Wider(Daily):
        def compute_features(self, raw):
            frame = super().compute_features(raw)
            return frame.assign(more=1.0) if raw.index[0].year == 2021 else frame

    with pytest.raises(ContractError, match="must keep their index labels from the raw rows"):
        compute_all(Renumbered(), daily_rows(), store)
    with pytest.raises(ContractError, match=r"'last' is float64 in .*'2020-01'.* and float32 in"):
        compute_all(Typed(), daily_rows(), store)
    with pytest.raises(ContractError, match=r"'more' is missing in .* and float64 in"):
        compute_all(Wider(), daily_rows(), store)


def test_error_of_the_workload_names_the_partition(store):
    class Broken(Daily):
        def compute_features(self, raw):
            if raw.index[-1].year == 2021:
                raise ValueError("no prices")
            return super().compute_features(raw)

    with pytest.raises(SluiceError, match=r"partition '20.*no prices"):
        compute_all(Broken(), daily_rows(), store)


def test_invalid_partition_settings_are_refused():
    with pytest.raises(SluiceError):
        PeriodPartitions.parse({"period": "M", "look_back_rows": -1}, where="test")
    with pytest.raises(SluiceError):
        PeriodPartitions.parse({"period": 0, "look_back_rows": 1}, where="test")
