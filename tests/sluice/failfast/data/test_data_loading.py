"""POC-6: enough complete, non-duplicated rows are loaded."""

import numpy as np
import pandas as pd
import pytest

from sluice.config.poc_settings import PocSettings
from sluice.data.schema import Column, Schema
from sluice.failfast.data.data_loading import check_data_loading, repeated_rows
from sluice.workloads.bars_contract import RAW_SCHEMA
from tests.sluice.workloads.bar_samples import random_bars
from tests.support.relative_timing import relative_duration

SETTINGS = PocSettings()
SCHEMA = Schema(columns=(Column(name="a"), Column(name="b", nullable=True)))


def make_table(rows: int = 400, columns: int = 2) -> pd.DataFrame:
    names = list("abcdefghijklmnopqrst")[:columns]
    return pd.DataFrame(np.random.default_rng(1).normal(size=(rows, columns)), columns=names)


def duplicate(table: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([table, table])


def run_check(raw: object) -> tuple[str, str | None]:
    finding = check_data_loading(raw, SCHEMA, SETTINGS)  # type: ignore[arg-type]
    return finding.outcome, finding.fault


def test_complete_and_usable_rows_are_counted() -> None:
    raw = make_table(400)
    raw.iloc[:7, 0] = np.nan
    raw.iloc[50:90, 1] = np.nan  # may be null

    finding = check_data_loading(raw, SCHEMA, SETTINGS)

    assert finding.outcome == "pass"
    assert dict(finding.numbers) == {"rows": 400, "complete": 393, "repeated": 0, "usable": 393}


@pytest.mark.parametrize(("rows", "expected"), [(99, "fail"), (100, "pass"), (0, "fail")])
def test_exactly_min_rows_are_enough(rows: int, expected: str) -> None:
    assert run_check(make_table(rows))[0] == expected


def test_too_few_complete_rows_fail_and_name_the_empty_column() -> None:
    raw = make_table(150)
    raw.loc[:60, "a"] = np.nan

    finding = check_data_loading(raw, SCHEMA, SETTINGS)

    assert (finding.outcome, finding.fault) == ("fail", "too few rows")
    assert "'a' is empty in 61" in finding.summary
    assert all(finding.response)


def test_more_gaps_never_leave_more_usable_rows() -> None:
    raw, usable = make_table(300), []
    for gaps in (0, 10, 100, 200):
        raw.iloc[:gaps, 0] = np.nan
        usable.append(check_data_loading(raw, SCHEMA, SETTINGS).numbers["usable"])

    assert usable == [300, 290, 200, 100]


@pytest.mark.parametrize("value", [None, [1, 2], {"a": [1.0]}])
def test_non_table_is_rejected(value: object) -> None:
    finding = check_data_loading(value, SCHEMA, SETTINGS)  # type: ignore[arg-type]

    assert finding.outcome == "fail"
    assert "must return a pandas DataFrame" in finding.summary


@pytest.mark.parametrize(
    "repeat",
    [
        duplicate,
        lambda t: pd.concat([t, t, t]),
        lambda t: pd.concat([t, t.sample(frac=0.3, random_state=0)]),
        lambda t: pd.concat([t, t.tail(12)]),
        lambda t: pd.concat([t.head(10), t]),
        lambda t: t.loc[t.index.repeat(2)].reset_index(drop=True),
        lambda t: duplicate(t.round(6)),
        lambda t: duplicate(t.assign(kind="same")),
        lambda t: duplicate(t.assign(b=np.nan)),
        lambda t: duplicate(t.assign(seconds=60.0 * np.arange(len(t)))),
    ],
)
def test_duplicate_rows_are_counted_as_pandas_counts_them(repeat) -> None:
    raw = repeat(make_table(400))

    finding = check_data_loading(raw, SCHEMA, SETTINGS)

    assert (finding.outcome, finding.fault) == ("fail", "duplicate rows")
    assert finding.numbers["repeated"] == raw.duplicated().sum()


def test_bars_that_were_appended_twice_fail() -> None:
    bars = random_bars(2000).round(2)
    raw = duplicate(bars).set_axis(pd.date_range("2001", periods=4000, name="date"))

    assert check_data_loading(raw, RAW_SCHEMA, SETTINGS).fault == "duplicate rows"


def test_duplicates_of_wide_integer_rows_are_counted() -> None:
    pixels = np.random.default_rng(2).integers(0, 17, size=(500, 64)).astype(float)

    assert repeated_rows(duplicate(pd.DataFrame(pixels))).sum() == 500


def few_values(rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame({"a": rng.integers(1, 6, 900).astype(float)})


def rounded(rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame({"a": rng.normal(size=900).round(3)})


def rounded_and_derived(rng: np.random.Generator) -> pd.DataFrame:
    a = rng.normal(size=900).round(3)
    return pd.DataFrame({"a": a, "b": 2 * a, "c": a**2})


def categories(rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame({"a": rng.choice(["x", "y"], 900), "b": rng.integers(0, 3, 900)})


def one_hot(rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame(np.eye(12)[rng.integers(0, 12, 900)])


def repeated_prices(rng: np.random.Generator) -> pd.DataFrame:
    price = rng.normal(size=900).cumsum()
    price[rng.random(900) < 0.4] = np.nan
    index = pd.date_range("2001", periods=900)
    return pd.DataFrame({"a": pd.Series(price, index).ffill().bfill(), "b": 0.0})


def mostly_zero(rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame(rng.normal(size=(900, 2)) * (rng.random(900) < 0.5)[:, None])


def arrays(rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame({"image": [np.zeros(3) for _ in range(900)], "a": rng.normal(size=900)})


def bars(rng: np.random.Generator) -> pd.DataFrame:
    return random_bars(900, seed=int(rng.integers(100))).round(2)


@pytest.mark.parametrize(
    "table",
    [
        few_values,
        rounded,
        rounded_and_derived,
        categories,
        one_hot,
        repeated_prices,
        mostly_zero,
        arrays,
        bars,
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_natural_repetitions_are_not_counted_as_duplicates(table, seed: int) -> None:
    raw = table(np.random.default_rng(seed))

    assert repeated_rows(raw).sum() == 0


def test_rows_that_differ_only_in_the_index_are_duplicates() -> None:
    raw = duplicate(make_table(300)).set_axis(pd.date_range("2001", periods=600))

    assert run_check(raw) == ("fail", "duplicate rows")


def test_a_tolerated_share_of_duplicates_is_counted_and_passes() -> None:
    raw = make_table(1000)
    finding = check_data_loading(pd.concat([raw, raw.head(9)]), SCHEMA, SETTINGS)

    assert finding.outcome == "pass"
    assert finding.numbers["repeated"] == 9


@pytest.mark.exhaustive
def test_duration_for_a_million_rows_is_comparable_to_pandas_duplicated() -> None:
    bars = random_bars(1_000_000 // 100)
    raw = pd.concat([bars * (1 + i / 1000) for i in range(100)]).reset_index(drop=True)
    raw = pd.concat([raw, raw.head(30_000)])

    assert check_data_loading(raw, RAW_SCHEMA, SETTINGS).fault == "duplicate rows"
    ratio = relative_duration(
        lambda: check_data_loading(raw, RAW_SCHEMA, SETTINGS), lambda: raw.duplicated().sum()
    )
    assert ratio < 4  # 0.6
