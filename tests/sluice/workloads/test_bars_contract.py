"""Validation and expectations of bars."""

import numpy as np
import pandas as pd
import pytest

from sluice.base.errors import ContractError
from sluice.data.expectations import Between, GreaterOrEqual, NotNull, RowCount, StdBetween
from sluice.data.sources import PackagedBars
from sluice.workloads.bars import BarsSettings, BarsWorkload
from sluice.workloads.bars_contract import RAW_SCHEMA, feature_schema, validate_bars
from tests.sluice.workloads.bar_samples import random_bars


def is_satisfied(expectation, frame: pd.DataFrame) -> bool:
    """Evaluate one expectation without Great Expectations."""
    match expectation:
        case NotNull(column=c):
            return bool(frame[c].notna().all())
        case Between(column=c, low=low, high=high):
            inside = frame[c].ge(-np.inf if low is None else low) & frame[c].le(
                np.inf if high is None else high
            )
            return bool(inside.all())
        case GreaterOrEqual(column=c, other=o):
            return bool((frame[c] >= frame[o]).all())
        case RowCount(low=low):
            return len(frame) >= low
        case StdBetween(column=c, low=low, high=high):
            return low <= frame[c].std() <= high
    raise AssertionError(expectation)


def list_violated(expectations, frame: pd.DataFrame) -> list[str]:
    return [repr(e) for e in expectations if not is_satisfied(e, frame)]


@pytest.mark.parametrize("target", ["log_gk_variance", "vs_return"])
@pytest.mark.parametrize("name", ["sp500", "nasdaq"])
def test_packaged_bars_satisfy_all_expectations(name, target):
    """Real data cause no false alarm (DATA-1)."""
    workload = BarsWorkload(BarsSettings(source=PackagedBars(name=name), target=target))
    raw = workload.load_rows()

    assert list_violated(workload.raw_expectations, raw) == []
    assert list_violated(workload.feature_expectations, workload.compute_features(raw)) == []


@pytest.mark.parametrize("seed", range(20))
def test_extreme_bars_stay_within_mathematical_feature_bounds(seed):
    bars = random_bars(600, seed=seed)
    jumps = np.exp(np.cumsum(np.random.default_rng(seed).standard_t(1.5, 600) * 0.02))
    for name in ("open", "high", "low", "close"):
        bars[name] *= jumps
    bars.iloc[200:280, 4] = 0
    workload = BarsWorkload()
    bounded_columns = [
        "momentum_z",
        "volume_z",
        "rsi_14",
        "bb_pct_b",
        "vol_regime",
        "pv_divergence",
    ]
    bounded_expectations = [
        e
        for e in workload.feature_expectations
        if isinstance(e, Between) and e.column in bounded_columns
    ]

    assert len(bounded_expectations) == 6
    assert list_violated(bounded_expectations, workload.compute_features(bars)) == []


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"high": 1.0}, "high must be at least low"),
        ({"close": 1e6}, "high must be at least open and close"),
        ({"open": 1.0}, "low must be at most open and close"),
        ({"low": -1.0}, "prices must be above 0"),
        ({"volume": -1.0}, "volume must be at least 0"),
    ],
)
def test_inconsistent_bars_are_rejected_and_violate_expectations(change, rule):
    bars = random_bars(600)
    for name, value in change.items():
        bars.iloc[[7, 9], list(bars.columns).index(name)] = value

    with pytest.raises(ContractError, match=rule) as caught:
        validate_bars(bars)

    assert "violated by 2 of 600 rows, first at row 7 (label 2001-01-08" in str(caught.value)
    assert list_violated(BarsWorkload().raw_expectations, bars) != []


def test_valid_bars_pass_unchanged():
    bars = random_bars(50)

    validate_bars(bars)

    assert bars.equals(random_bars(50))


def test_every_column_has_a_description_and_a_unit():
    for schema in (RAW_SCHEMA, feature_schema("log_gk_variance"), feature_schema("vs_return")):
        assert all(column.description and column.unit for column in schema.columns)
