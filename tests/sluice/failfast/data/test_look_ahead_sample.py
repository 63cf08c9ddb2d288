"""The look-ahead check samples large tables and independent rows, and reports the sample."""

import numpy as np
import pandas as pd
import pytest

from sluice.config.poc_settings import LookAheadSettings, PocSettings
from sluice.failfast.data.look_ahead import check_look_ahead
from tests.support.echo import Echo

ROWS, COLUMNS = 5000, 40
NAMES = tuple(f"c{number}" for number in range(COLUMNS))
SMALL_SAMPLE = LookAheadSettings(max_cells=100_000)
"""The table has 205,000 cells; the sample consists of three blocks of 813 rows."""


class Wide(Echo):
    """Features are the raw columns; ``feature`` transforms the columns in ``changed``."""

    feature_columns = NAMES
    horizon_rows = 1

    def __init__(self, feature=lambda x: x, changed=NAMES):
        super().__init__()
        self.feature, self.changed = feature, list(changed)
        self.rows_computed = []

    def load_rows(self):
        values = np.random.default_rng(0).normal(size=(ROWS, COLUMNS + 1))
        return pd.DataFrame(values, columns=[*NAMES, "echo"])

    def compute_features(self, raw):
        self.rows_computed.append(len(raw))
        return raw.assign(**{name: self.feature(raw[name]) for name in self.changed}).dropna()


class IndependentRows(Wide):
    horizon_rows = 0


def check(workload, settings=SMALL_SAMPLE):
    raw = workload.load_rows()
    frame = workload.compute_features(raw)
    workload.rows_computed.clear()
    return check_look_ahead(workload, raw, frame, PocSettings(look_ahead=settings), seed=0)


@pytest.mark.parametrize("feature", [lambda x: x, lambda x: x.rolling(300).mean()])
def test_a_large_table_is_sampled_in_three_blocks(feature):
    workload = Wide(feature)
    finding = check(workload)

    assert finding.outcome == "pass"
    assert max(workload.rows_computed) == 813
    assert "None of 40 features changed in 21 tables" in finding.summary
    assert "from 3 blocks of 813 consecutive rows of 5,000" in finding.summary
    assert (finding.numbers["rows"], finding.numbers["features_compared"]) == (2439, 40)


def make_leak_within(start, stop):
    """Return a feature that equals the next row's value, in rows from start to stop only."""

    def feature(column):
        rows = (column.index >= start) & (column.index < stop)
        return column.where(~rows, column.shift(-1).fillna(0.0))

    return feature


@pytest.mark.parametrize(("start", "stop"), [(0, 800), (4200, 5000)])
def test_a_leak_in_only_the_oldest_or_newest_rows_is_found(start, stop):
    finding = check(Wide(make_leak_within(start, stop), changed=["c7"]))

    assert (finding.outcome, finding.fault) == ("fail", "look-ahead")


def test_a_leak_in_the_middle_third_is_found_with_most_seeds():
    workload = Wide(make_leak_within(1500, 3200), changed=["c7"])
    raw = workload.load_rows()
    frame = workload.compute_features(raw)
    settings = PocSettings(look_ahead=SMALL_SAMPLE)
    outcomes = [
        check_look_ahead(workload, raw, frame, settings, seed=seed).outcome for seed in range(20)
    ]

    assert outcomes.count("fail") >= 15


@pytest.mark.parametrize(
    "feature",
    [
        lambda x: x.shift(-1).fillna(0.0),
        lambda x: (x - x.mean()) / x.std(),
        lambda x: x.rolling(5, center=True).mean(),
    ],
)
def test_look_ahead_in_a_large_table_is_found(feature):
    finding = check(Wide(feature, changed=["c7"]))

    assert (finding.outcome, finding.fault) == ("fail", "look-ahead")
    assert "1 of 40 features look ahead: 'c7' at row" in finding.summary
    assert "A sample was examined" in finding.summary


def test_use_of_rows_before_the_sample_passes():
    assert check(Wide(lambda x: x.cumsum())).outcome == "pass"


def test_rolling_window_longer_than_the_sample_gets_the_whole_table():
    workload = Wide(lambda x: x.rolling(2000).mean())
    finding = check(workload)

    assert finding.outcome == "pass"
    assert finding.numbers["rows"] == ROWS
    assert "sample" not in finding.summary


@pytest.mark.parametrize("number", [0, 13, 39])
def test_limited_columns_rotate_until_all_are_compared(number):
    settings = LookAheadSettings(max_columns=6)
    leaking = check(Wide(lambda x: x - x.mean(), changed=[f"c{number}"]), settings)
    healthy = check(Wide(), settings)

    assert leaking.outcome == "fail"
    assert f"'c{number}' at row" in leaking.summary
    assert healthy.numbers["features_compared"] == 40
    assert (
        "each changed table was compared in 6 of 40 features, in turn (poc.look_ahead"
        in healthy.summary
    )


def test_independent_rows_need_only_one_changed_table():
    workload = IndependentRows()
    finding = check(workload, LookAheadSettings())

    assert finding.outcome == "pass"
    assert len(workload.rows_computed) == 1
    assert "1 table whose later rows were changed. One table is sufficient" in finding.summary


@pytest.mark.parametrize(
    "feature",
    [
        lambda x: (x - x.mean()) / x.std(),
        lambda x: (x - x.min()) / (x.max() - x.min()),
        lambda x: x.rank(pct=True),
        lambda x: x.shift(-1).fillna(0.0),
    ],
)
def test_use_of_other_rows_is_found_in_independent_rows(feature):
    assert check(IndependentRows(feature), LookAheadSettings()).outcome == "fail"
