"""Time, tick, volume, dollar and range bars that are built from ticks (DATA-2)."""

import os
import resource
import subprocess
import sys
import types

import numpy as np
import pandas as pd
import pytest

from sluice.base.errors import ContractError, SchemaError, SettingsError
from sluice.data import bar_ends
from sluice.data.bar_rules import (
    DollarBars,
    RangeBars,
    TickBars,
    TimeBars,
    VolumeBars,
)
from sluice.data.tick_bars import build_bars
from tests.sluice.data.tick_samples import build_reference_bars, random_ticks

RULES = [
    TimeBars(seconds=60),
    TimeBars(seconds=7),
    TickBars(num_ticks=1),
    TickBars(num_ticks=13),
    VolumeBars(units=1),
    VolumeBars(units=400),
    DollarBars(value=20_000.0),
    RangeBars(tenths_of_bp=1),
    RangeBars(tenths_of_bp=100),
    RangeBars(tenths_of_bp=240),
]
EVENT_RULES = [rule for rule in RULES if not isinstance(rule, TimeBars)]


def format_rule_id(rule) -> str:
    return "-".join(str(value) for value in rule.model_dump().values())


def ticks_at(seconds: list[float], prices: list[float], sizes: list[float] | None = None):
    """Return ticks at the given seconds after midnight."""
    times = pd.Timestamp("2024-03-01").as_unit("us") + pd.to_timedelta(seconds, unit="s")
    return pd.DataFrame(
        {"price": prices, "size": sizes or [1.0] * len(prices)},
        index=pd.DatetimeIndex(times, name="time"),
    )


def seconds_of(bars: pd.DataFrame) -> list[float]:
    return (bars.index - pd.Timestamp("2024-03-01")).total_seconds().tolist()


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("rule", RULES, ids=format_rule_id)
def test_bars_equal_those_of_the_exact_reference_builder(rule, seed):
    """The reference counts in integer cents; prices on multiples of a cent give many exact ties."""
    ticks = random_ticks(1_000, seed=seed)
    expected = build_reference_bars(ticks, rule)

    bars = build_bars(ticks, rule)

    assert len(bars) > 5
    pd.testing.assert_frame_equal(bars, expected, check_exact=True)


@pytest.mark.parametrize("seconds", [1, 60, 3_600])
def test_time_bars_equal_pandas_resample(seconds):
    ticks = random_ticks(3_000, seed=4)
    grouped = ticks.resample(f"{seconds}s", closed="left", label="right")
    expected = (
        grouped["price"]
        .ohlc()
        .assign(volume=grouped["size"].sum(), num_ticks=grouped["size"].count())
    )
    expected = expected[expected["num_ticks"] > 0].iloc[:-1]

    bars = build_bars(ticks, TimeBars(seconds=seconds))

    pd.testing.assert_frame_equal(bars, expected, check_freq=False, check_exact=True)


@pytest.mark.parametrize("rule", RULES, ids=format_rule_id)
def test_each_tick_is_counted_in_exactly_one_bar(rule):
    ticks = random_ticks(2_000, seed=5)

    bars = build_bars(ticks, rule)

    used = ticks.iloc[: bars["num_ticks"].sum()]
    assert 0 < len(used) <= len(ticks)
    assert bars["volume"].sum() == used["size"].sum()
    assert bars["high"].max() == used["price"].max()
    assert bars["low"].min() == used["price"].min()
    assert (bars["num_ticks"] >= 1).all()


@pytest.mark.parametrize("rule", RULES, ids=format_rule_id)
def test_bars_are_consistent_and_labels_increase(rule):
    bars = build_bars(random_ticks(2_000, seed=6), rule)

    assert (bars["high"] >= bars[["open", "close"]].max(axis=1)).all()
    assert (bars["low"] <= bars[["open", "close"]].min(axis=1)).all()
    assert bars.index.is_monotonic_increasing
    assert bars.index.is_unique


@pytest.mark.parametrize("rule", RULES, ids=format_rule_id)
def test_later_ticks_do_not_change_earlier_bars(rule):
    """Bars of the first ticks equal the first bars of all ticks; later labels follow the cut."""
    ticks = random_ticks(1_500, seed=7)
    all_bars = build_bars(ticks, rule)

    for cut in (9, 300, 901, 1_499):
        # The cut keeps or drops all ticks of one time together.
        early_ticks = ticks[ticks.index < ticks.index[cut]]
        bars = build_bars(early_ticks, rule)
        pd.testing.assert_frame_equal(bars, all_bars.iloc[: len(bars)], check_exact=True)
        assert (all_bars.index[len(bars) :] > early_ticks.index[-1]).all()


@pytest.mark.parametrize("rule", RULES, ids=format_rule_id)
@pytest.mark.parametrize("num_ticks", [0, 1])
def test_zero_or_one_tick_gives_bars_only_if_the_rule_is_met(rule, num_ticks):
    ticks = random_ticks(3, seed=8).assign(size=2.0).iloc[:num_ticks]

    bars = build_bars(ticks, rule)

    fills_alone = rule in (TickBars(num_ticks=1), VolumeBars(units=1))
    assert len(bars) == (num_ticks if fills_alone else 0)
    assert list(bars.columns) == ["open", "high", "low", "close", "volume", "num_ticks"]
    assert bars.index.dtype == ticks.index.dtype


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (TickBars(num_ticks=10), TickBars(num_ticks=11)),
        (VolumeBars(units=300.0), VolumeBars(units=400.0)),
        (DollarBars(value=15e3), DollarBars(value=20e3)),
        (RangeBars(tenths_of_bp=120), RangeBars(tenths_of_bp=200)),
        (TimeBars(seconds=30), TimeBars(seconds=60)),
    ],
    ids=lambda rule: rule.kind,
)
def test_higher_threshold_gives_fewer_bars(narrow, wide):
    ticks = random_ticks(3_000, seed=9)

    assert len(build_bars(ticks, wide)) < len(build_bars(ticks, narrow))


def test_range_bar_includes_the_tick_that_closes_it():
    # 1 % of 100 is 1, which is reached from 99.5 to 100.5; the jump from 101 to 103 exceeds it.
    ticks = ticks_at([0, 1, 2, 3, 4, 5], [100.0, 99.5, 100.5, 101.0, 103.0, 103.0])

    bars = build_bars(ticks, RangeBars(tenths_of_bp=1_000))

    assert bars[["open", "high", "low", "close"]].to_numpy().tolist() == [
        [100.0, 100.5, 99.5, 100.5],
        [101.0, 103.0, 101.0, 103.0],
    ]
    assert seconds_of(bars) == [2, 4]


def test_range_threshold_is_relative_to_the_open_of_each_bar():
    ticks = ticks_at([0, 1, 2, 3, 4], [100.0, 101.0, 200.0, 201.0, 202.0])

    bars = build_bars(ticks, RangeBars(tenths_of_bp=1_000))

    assert bars["close"].tolist() == [101.0, 202.0]


def test_decimal_threshold_is_reached_despite_rounding_errors():
    """Ten sizes of 0.1 sum to 0.9999999999999999, and 100.1 - 100 is less than 0.1."""
    volume_bars = build_bars(ticks_at([*range(10)], [5.0] * 10, [0.1] * 10), VolumeBars(units=1.0))
    dollar_bars = build_bars(ticks_at([*range(10)], [1.0] * 10, [0.1] * 10), DollarBars(value=1.0))
    range_bars = build_bars(ticks_at([0, 1], [100.0, 100.1]), RangeBars(tenths_of_bp=100))

    assert (len(volume_bars), len(dollar_bars), len(range_bars)) == (1, 1, 1)


@pytest.mark.parametrize("rule", [VolumeBars(units=9), DollarBars(value=90)], ids=format_rule_id)
def test_tick_above_the_threshold_is_not_split(rule):
    ticks = ticks_at([0, 1, 2], [10.0] * 3, [25.0, 8.0, 1.0])

    bars = build_bars(ticks, rule)

    assert bars["volume"].tolist() == [25.0, 9.0]


@pytest.mark.parametrize("rule", [TickBars(num_ticks=2), VolumeBars(units=2)], ids=format_rule_id)
def test_bars_that_close_at_the_same_time_are_merged(rule):
    ticks = ticks_at([0, 1, 1, 1, 1, 1, 2], [5.0, 6.0, 9.0, 4.0, 3.0, 7.0, 8.0])

    bars = build_bars(ticks, rule)

    # Each of the three bars of two ticks closes at 1 s; the last tick is not yet in a bar.
    assert seconds_of(bars) == [1]
    assert bars.iloc[0].tolist() == [5.0, 9.0, 3.0, 7.0, 6.0, 6.0]


def test_time_bar_excludes_its_end_and_empty_intervals_have_no_bar():
    ticks = ticks_at([0, 59.999999, 60, 200, 240], [1.0, 2.0, 3.0, 4.0, 5.0])

    bars = build_bars(ticks, TimeBars(seconds=60))

    assert seconds_of(bars) == [60, 120, 240]
    assert bars["close"].tolist() == [2.0, 3.0, 4.0]


def test_time_bar_is_complete_only_after_a_later_tick():
    ticks = ticks_at([0, 59], [1.0, 2.0])

    assert build_bars(ticks, TimeBars(seconds=60)).empty


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_time_unit_is_kept_and_does_not_change_bars(unit):
    ticks = random_ticks(800, seed=10, unit="s")
    other = ticks.set_axis(ticks.index.as_unit(unit))
    for rule in (TimeBars(seconds=60), TickBars(num_ticks=20)):
        expected = build_bars(ticks, rule)

        bars = build_bars(other, rule)

        assert bars.index.unit == unit
        pd.testing.assert_frame_equal(bars, expected.set_axis(expected.index.as_unit(unit)))


def test_daily_bars_of_zoned_ticks_begin_at_midnight_utc():
    ticks = ticks_at([0, 80_000, 90_000, 180_000], [1.0, 2.0, 3.0, 4.0])
    zoned = ticks.set_axis(ticks.index.tz_localize("America/New_York"))

    plain_days = build_bars(ticks, TimeBars(seconds=86_400))
    zoned_days = build_bars(zoned, TimeBars(seconds=86_400))

    assert plain_days.index.tolist() == [pd.Timestamp("2024-03-02"), pd.Timestamp("2024-03-03")]
    assert str(zoned_days.index.tz) == "America/New_York"
    assert zoned_days.index.tz_convert("UTC").hour.tolist() == [0, 0]
    assert build_bars(zoned, TickBars(num_ticks=4)).index[0] == zoned.index[3]


def test_ticks_before_1970_fall_into_their_interval():
    ticks = ticks_at([0, 30, 60], [1.0, 2.0, 3.0])
    ticks_before_1970 = ticks.set_axis(ticks.index - pd.Timedelta(days=30_000))

    bars = build_bars(ticks_before_1970, TimeBars(seconds=60))

    assert bars.index.tolist() == [ticks_before_1970.index[2]]
    assert bars["num_ticks"].tolist() == [2]


def test_integer_read_only_and_strided_columns_are_accepted():
    ticks = random_ticks(500, seed=11)
    integer_ticks = ticks.assign(price=ticks["price"].round().astype("int64"), size=1)
    expected = build_bars(integer_ticks.astype("float64"), TickBars(num_ticks=7))

    bars = build_bars(integer_ticks, TickBars(num_ticks=7))

    pd.testing.assert_frame_equal(bars, expected)
    read_only_N = ticks["price"].to_numpy()
    assert not read_only_N.flags.writeable
    assert len(build_bars(ticks, RangeBars(tenths_of_bp=50))) > 5
    strided = pd.DataFrame(np.asfortranarray(ticks.to_numpy().repeat(2, axis=0)))[::2]
    strided = strided.set_axis(["price", "size"], axis=1).set_axis(ticks.index)
    rule = RangeBars(tenths_of_bp=50)
    pd.testing.assert_frame_equal(build_bars(strided, rule), build_bars(ticks, rule))


@pytest.mark.parametrize(
    ("column", "value", "error", "expected"),
    [
        ("price", 0.0, ContractError, "price must be above 0, violated by 1 of 20 ticks, first at"),
        ("price", -1.0, ContractError, "price must be above 0"),
        ("size", -2.0, ContractError, "size must be at least 0"),
        ("price", np.nan, SchemaError, "column 'price' must have no nulls"),
        ("size", np.nan, SchemaError, "column 'size' must have no nulls"),
        ("price", np.inf, SchemaError, "column 'price' must be finite"),
        ("size", np.inf, SchemaError, "column 'size' must be finite"),
    ],
)
def test_invalid_tick_is_reported_with_its_row(column, value, error, expected):
    ticks = random_ticks(20, seed=12)
    ticks.iloc[13, ticks.columns.get_loc(column)] = value

    with pytest.raises(error) as caught:
        build_bars(ticks, RangeBars(tenths_of_bp=10))

    assert expected in str(caught.value)
    assert f"row 13 (label {ticks.index[13]}" in str(caught.value)


def test_unsorted_ticks_are_rejected_with_the_first_position():
    ticks = ticks_at([0, 5, 4, 3], [1.0] * 4)

    with pytest.raises(SchemaError, match=r"sorted, first label out of order: .*00:00:04 at row 2"):
        build_bars(ticks, TickBars(num_ticks=1))


def test_tick_without_a_time_is_rejected():
    ticks = random_ticks(5, seed=13)
    with_missing_time = ticks.set_axis(ticks.index.where(np.arange(5) != 3).rename("time"))

    with pytest.raises(SchemaError, match=r"index must have no nulls, first at row 3"):
        build_bars(with_missing_time, TickBars(num_ticks=1))


def test_missing_column_error_suggests_the_nearest_name():
    ticks = random_ticks(5, seed=14).rename(columns={"size": "sizes"})

    with pytest.raises(SchemaError, match=r"'size' is missing \(nearest: 'sizes'\)"):
        build_bars(ticks, TickBars(num_ticks=1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: TimeBars(seconds=0),
        lambda: TimeBars(seconds=86_401),
        lambda: TickBars(num_ticks=0),
        lambda: VolumeBars(units=0.0),
        lambda: DollarBars(value=float("nan")),
        lambda: RangeBars(tenths_of_bp=0),
    ],
)
def test_rule_with_out_of_range_threshold_is_rejected(make):
    with pytest.raises(SettingsError):
        make()


def test_compiled_loops_equal_the_python_loops():
    ticks = random_ticks(3_000, seed=15)
    price_N = ticks["price"].to_numpy()
    for loop, threshold in ((bar_ends._ends_by_range, 1e-3), (bar_ends._ends_by_sum, 200.0)):
        compiled = bar_ends._compile_loop(loop)

        assert compiled is not loop
        assert compiled(price_N, threshold).tolist() == loop(price_N, threshold).tolist()


def test_loop_is_compiled_without_a_writable_cache():
    """As in a read-only installation of a user without a home, numba finds no cache folder."""
    loop = bar_ends._ends_by_sum
    loop_without_file = types.FunctionType(
        loop.__code__.replace(co_filename="<none>"), loop.__globals__
    )

    compiled = bar_ends._compile_loop(loop_without_file)

    assert compiled(np.ones(5), 2.0).tolist() == [1, 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "kept_bytes"),
    [
        ("full disk", ()),
        ("torn index", (20,)),
        *(
            pytest.param(f"torn {part}", (0, 20), marks=pytest.mark.exhaustive)
            for part in ("index", "code")
        ),
    ],
)
def test_unusable_numba_cache_does_not_stop_bars(tmp_path, damage, kept_bytes):
    script = (
        "import numpy as np; from sluice.data import bar_ends;"
        "print(bar_ends._compile_loop(bar_ends._ends_by_sum)(np.ones(5), 2.0).tolist())"
    )

    def run_script(before_exec=None) -> str:
        process = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            preexec_fn=before_exec,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert process.returncode == 0, process.stderr
        return process.stdout.strip()

    if damage == "full disk":
        assert run_script(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))) == "[1, 3]"
        return
    assert run_script() == "[1, 3]"
    [file] = tmp_path.rglob("*.nbi" if damage == "torn index" else "*.nbc")
    for num_bytes in kept_bytes:
        file.write_bytes(file.read_bytes()[:num_bytes])
        assert run_script() == "[1, 3]"


def test_importing_sources_does_not_import_numba_sqlalchemy_arch_or_fsspec():
    script = (
        "import sys, sluice.data.sources;"
        "print(*sorted({'numba', 'sqlalchemy', 'arch', 'fsspec'} & set(sys.modules)))"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )

    assert process.stdout.split() == []
