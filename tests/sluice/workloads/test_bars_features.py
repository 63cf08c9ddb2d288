"""The nine features: known values, a reference in loops, no look-ahead, edge cases (SCH-2)."""

import math
import statistics

import numpy as np
import pandas as pd
import pytest

from sluice.base.errors import SettingsError
from sluice.workloads import bars_features as bf
from sluice.workloads.bars_features import FeatureSettings, nine_features
from tests.sluice.workloads.bar_samples import flat_bars, random_bars
from tests.support.relative_timing import relative_duration

SETTINGS = FeatureSettings()
NAMES = [
    "returns_vs",
    "momentum_z",
    "atr_pct",
    "volume_z",
    "rsi_14",
    "bb_pct_b",
    "vol_regime",
    "return_accel",
    "pv_divergence",
]


def series(*values: float) -> pd.Series:
    return pd.Series(values, dtype="float64")


class ReferenceFeatures:
    """The nine features of one row at a time, from lists and the statistics module."""

    def __init__(self, bars: pd.DataFrame, settings: FeatureSettings) -> None:
        self.o, self.h, self.l, self.c, self.v = (
            bars[name].tolist() for name in ("open", "high", "low", "close", "volume")
        )
        self.s = settings

    def r(self, t: int) -> float:
        return math.log(self.c[t] / self.c[t - 1])

    def vol(self, t: int) -> float:
        window = [self.r(i) for i in range(t - self.s.vol_rows + 1, t + 1)]
        return max(statistics.stdev(window), self.s.min_volatility)

    def z(self, values: list[float]) -> float:
        deviation = statistics.stdev(values)
        return (values[-1] - statistics.mean(values)) / deviation if deviation > 1e-6 else 0.0

    def momentum(self, t: int, span: int) -> float:
        return math.log(self.c[t] / self.c[t - span])

    def variance(self, t: int) -> float:
        spread = math.log(self.h[t]) - math.log(self.l[t])
        drift = math.log(self.c[t]) - math.log(self.o[t])
        return max(
            spread * spread / 2 - (2 * math.log(2) - 1) * drift * drift, self.s.min_volatility**2
        )

    def wilder(self, values: list[float], rows: int) -> float:
        average = sum(values[:rows]) / rows
        for value in values[rows:]:
            average = (average * (rows - 1) + value) / rows
        return average

    def returns_vs(self, t: int) -> float:
        return self.r(t) / self.vol(t - 1)

    def momentum_z(self, t: int) -> float:
        k, n = self.s.momentum_rows, self.s.momentum_z_rows
        return self.z([self.momentum(i, k) for i in range(t - n + 1, t + 1)])

    def atr_pct(self, t: int) -> float:
        ranges = [self.h[0] - self.l[0]]
        for i in range(1, t + 1):
            before = self.c[i - 1]
            ranges.append(
                max(self.h[i] - self.l[i], abs(self.h[i] - before), abs(self.l[i] - before))
            )
        share = self.wilder(ranges, self.s.atr_rows) / self.c[t]
        return math.log(max(share, self.s.min_volatility))

    def volume_z(self, t: int) -> float:
        return self.z([math.log(1 + v) for v in self.v[t - self.s.volume_rows + 1 : t + 1]])

    def rsi_14(self, t: int) -> float:
        changes = [b - a for a, b in zip(self.c[:t], self.c[1 : t + 1], strict=True)]
        rise = self.wilder([max(x, 0) for x in changes], 14)
        fall = self.wilder([max(-x, 0) for x in changes], 14)
        return 50.0 if rise == fall == 0 else 100 - 100 / (1 + rise / fall)

    def bb_pct_b(self, t: int) -> float:
        window = self.c[t - self.s.band_rows + 1 : t + 1]
        middle, deviation = statistics.mean(window), statistics.pstdev(window)
        lower, upper = (middle + side * self.s.band_width * deviation for side in (-1, 1))
        return (self.c[t] - lower) / (upper - lower)

    def vol_regime(self, t: int) -> float:
        def level(rows: int) -> float:
            return math.sqrt(statistics.mean(self.variance(i) for i in range(t - rows + 1, t + 1)))

        return math.log(level(self.s.regime_short_rows) / level(self.s.regime_long_rows))

    def return_accel(self, t: int) -> float:
        k = self.s.accel_rows
        rise = self.momentum(t, k) - self.momentum(t - k, k)
        return rise / (self.vol(t) * math.sqrt(2 * k))

    def pv_divergence(self, t: int) -> float:
        rows = range(t - self.s.divergence_rows + 1, t + 1)
        flow = [math.log((1 + self.v[i]) / (1 + self.v[i - 1])) for i in rows]
        return -statistics.correlation([self.r(i) for i in rows], flow)


@pytest.mark.parametrize("name", NAMES)
def test_feature_equals_python_loop(name):
    bars = random_bars(150, seed=3)
    compute_expected = getattr(ReferenceFeatures(bars, SETTINGS), name)

    actual = nine_features(bars, SETTINGS)[name].to_numpy()

    for t in range(SETTINGS.warm_up_rows, len(bars)):
        assert actual[t] == pytest.approx(compute_expected(t), rel=1e-9, abs=1e-9), t


@pytest.mark.parametrize("name", NAMES)
def test_feature_with_non_default_windows_equals_python_loop(name):
    settings = FeatureSettings(
        vol_rows=9,
        momentum_rows=4,
        momentum_z_rows=17,
        atr_rows=5,
        volume_rows=8,
        band_rows=7,
        band_width=1.5,
        regime_short_rows=3,
        regime_long_rows=12,
        accel_rows=2,
        divergence_rows=6,
    )
    bars = random_bars(60, seed=4)

    actual = nine_features(bars, settings)[name].to_numpy()

    compute_expected = getattr(ReferenceFeatures(bars, settings), name)
    for t in range(settings.warm_up_rows, len(bars)):
        assert actual[t] == pytest.approx(compute_expected(t), rel=1e-9, abs=1e-9), t


# Known values that were calculated manually.


def test_returns_vs_matches_manual_values():
    # Log returns 1, -1, 1, 2; the sample standard deviation of (1, -1, 1) is sqrt(4/3).
    close = np.exp(series(0, 1, 0, 1, 3))

    actual = bf.returns_vs(close, rows=3, floor=1e-4)

    assert actual.iloc[4] == pytest.approx(2 / math.sqrt(4 / 3))
    assert actual.iloc[:4].isna().all()


def test_momentum_z_matches_manual_values():
    # Momentum over one row: 1, 2, 3; mean 2, standard deviation 1.
    actual = bf.momentum_z(np.exp(series(0, 1, 3, 6)), span_rows=1, rows=3, min_deviation=1e-6)

    assert actual.iloc[3] == pytest.approx(1.0)


def test_atr_pct_matches_manual_values():
    # True ranges: 2 (first, H - L), 3 (gap up: 13 - 10), 6 (gap down: 12 - 6).
    high, low, close = series(11, 13, 8), series(9, 12, 6), series(10, 12, 8)

    actual = bf.atr_pct(high, low, close, rows=2, floor=1e-4)

    assert np.isnan(actual.iloc[0])
    assert actual.iloc[1] == pytest.approx(math.log(2.5 / 12))
    assert actual.iloc[2] == pytest.approx(math.log((2.5 * 1 + 6) / 2 / 8))


def test_volume_z_matches_manual_values():
    volume = np.exp(series(1, 2, 3)) - 1

    assert bf.volume_z(volume, rows=3, min_deviation=1e-6).iloc[2] == pytest.approx(1.0)


def test_rsi_14_matches_manual_values():
    # 14 changes (10 rises of 1, 4 falls of 0.5), then one fall of 2: first average and update.
    close = series(*np.cumsum([100.0] + [1.0] * 10 + [-0.5] * 4 + [-2.0]))

    actual = bf.rsi_14(close)

    assert actual.iloc[:14].isna().all()
    assert actual.iloc[14] == pytest.approx(100 * 10 / 12)
    rise, fall = 10 / 14 * 13 / 14, (2 / 14 * 13 + 2) / 14
    assert actual.iloc[15] == pytest.approx(100 * rise / (rise + fall))


def test_bb_pct_b_matches_manual_values():
    # Closes 1, 2, 3; mean 2, population standard deviation sqrt(2/3).
    actual = bf.bb_pct_b(series(1, 2, 3), rows=3, width=2.0, min_deviation=1e-6)

    assert actual.iloc[2] == pytest.approx(0.5 + 1 / (4 * math.sqrt(2 / 3)))


def test_vol_regime_matches_manual_values():
    # Mean variance 16 over one row, (1 + 1 + 16) / 3 = 6 over three.
    actual = bf.vol_regime(series(1, 1, 16), short_rows=1, long_rows=3)

    assert actual.iloc[2] == pytest.approx(math.log(16 / 6) / 2)


def test_return_accel_matches_manual_values():
    # Log returns 1, -1, 1, 2; the momentum increases by 1; standard deviation sqrt(7/3).
    close = np.exp(series(0, 1, 0, 1, 3))

    actual = bf.return_accel(close, span_rows=1, vol_rows=3, floor=1e-4)

    assert actual.iloc[4] == pytest.approx(1 / (math.sqrt(7 / 3) * math.sqrt(2)))


def test_pv_divergence_is_one_for_opposed_and_minus_one_for_parallel_moves():
    log_price = series(0, 1, 3, 2, 5)
    opposed = bf.pv_divergence(
        np.exp(log_price), np.exp(20 - log_price) - 1, rows=4, min_deviation=1e-6
    )
    together = bf.pv_divergence(
        np.exp(log_price), np.exp(20 + log_price) - 1, rows=4, min_deviation=1e-6
    )

    assert opposed.iloc[4] == pytest.approx(1)
    assert together.iloc[4] == pytest.approx(-1)


def test_garman_klass_matches_manual_values():
    bars = pd.DataFrame(
        {"open": [1.0, 1.0], "high": [math.e, 1.0], "low": [1.0, 1.0], "close": [math.e, 1.0]}
    )

    actual = bf.log_gk_variance(bars, floor=1e-8)

    assert actual.iloc[0] == pytest.approx(math.log(0.5 - (2 * math.log(2) - 1)))
    assert actual.iloc[1] == pytest.approx(math.log(1e-8))


# Look-ahead, warm-up, edge cases and speed.


@pytest.mark.parametrize("name", NAMES)
def test_later_rows_do_not_change_earlier_features(name):
    bars = random_bars(140, seed=5)
    changed = bars.copy()
    changed.iloc[100:] = random_bars(140, seed=99).iloc[100:] * 3

    before, after = (nine_features(table, SETTINGS)[name] for table in (bars, changed))

    pd.testing.assert_series_equal(before.iloc[:100], after.iloc[:100], check_exact=True)
    assert after.iloc[100] != before.iloc[100]
    cut = nine_features(bars.iloc[:100], SETTINGS)[name]
    pd.testing.assert_series_equal(cut, before.iloc[:100], check_exact=True, check_freq=False)


def test_warm_up_rows_are_exactly_the_rows_with_missing_features():
    for settings in (
        SETTINGS,
        FeatureSettings(regime_long_rows=90),
        FeatureSettings(vol_rows=80),
        FeatureSettings(atr_rows=90),
    ):
        is_complete = nine_features(random_bars(150), settings).notna().all(axis=1)

        assert is_complete.to_numpy().argmax() == settings.warm_up_rows
        assert is_complete.iloc[settings.warm_up_rows :].all()


def test_constant_bars_have_defined_features():
    frame = nine_features(flat_bars(120), SETTINGS).iloc[SETTINGS.warm_up_rows :]

    expected = dict.fromkeys(NAMES, 0.0)
    expected |= {"rsi_14": 50.0, "bb_pct_b": 0.5, "atr_pct": math.log(1e-4)}
    for name in NAMES:
        np.testing.assert_allclose(frame[name], expected[name], atol=1e-12)


def test_features_of_a_constant_period_are_finite():
    bars = random_bars(400, seed=6)
    bars.iloc[150:300, :4] = bars["close"].iloc[149]
    bars.iloc[150:300, 4] = 0.0

    frame = nine_features(bars, SETTINGS).iloc[SETTINGS.warm_up_rows :]

    assert np.isfinite(frame.to_numpy()).all()


@pytest.mark.parametrize(("step", "value"), [(1.0, 100.0), (-0.1, 0.0)])
def test_rsi_14_of_a_monotonic_price_is_0_or_100(step, value):
    close = series(*(100 + step * np.arange(40)))

    np.testing.assert_allclose(bf.rsi_14(close).iloc[14:], value, atol=1e-9)


def test_features_do_not_depend_on_the_price_unit():
    bars = random_bars(150, seed=7)
    prices = ["open", "high", "low", "close"]
    cents = bars.assign(**{name: bars[name] * 100 for name in prices})

    pd.testing.assert_frame_equal(nine_features(bars, SETTINGS), nine_features(cents, SETTINGS))


def test_short_regime_window_must_be_shorter_than_the_long_one():
    with pytest.raises(SettingsError, match="regime_short_rows must be smaller"):
        FeatureSettings.parse({"regime_short_rows": 63}, where="test")


@pytest.mark.exhaustive
def test_million_rows_take_less_than_25_rolling_standard_deviations():
    bars = random_bars(1_000_000)

    ratio = relative_duration(lambda: nine_features(bars, SETTINGS), lambda: bars.rolling(63).std())
    assert ratio < 25  # about 5 when measured
