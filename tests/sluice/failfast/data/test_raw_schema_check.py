"""POC-7: the raw rows have the columns, dtypes and index that are declared."""

import numpy as np
import pandas as pd
import pytest

from sluice.base.errors import SchemaError
from sluice.data.validation import validate_schema
from sluice.failfast.data.raw_schema import check_raw_schema
from sluice.workloads.bars_contract import RAW_SCHEMA
from tests.sluice.workloads.bar_samples import random_bars
from tests.support.relative_timing import relative_duration

BARS = random_bars(300)


def rename_columns(bars: pd.DataFrame) -> pd.DataFrame:
    return bars.rename(columns={"close": "Close", "volume": "volum"})


def add_null(bars: pd.DataFrame) -> pd.DataFrame:
    return bars.assign(high=bars["high"].mask(np.arange(len(bars)) == 7))


def add_infinity(bars: pd.DataFrame) -> pd.DataFrame:
    return bars.assign(low=bars["low"].mask(np.arange(len(bars)) == 7, np.inf))


def test_declared_bars_pass() -> None:
    finding = check_raw_schema(BARS, RAW_SCHEMA)

    assert finding.outcome == "pass"
    assert dict(finding.numbers) == {"rows": 300, "columns": 5, "declared_columns": 5}


def test_missing_columns_are_reported_with_the_nearest_names() -> None:
    finding = check_raw_schema(rename_columns(BARS), RAW_SCHEMA)

    assert (finding.outcome, finding.fault) == ("fail", "missing columns")
    assert "'close' is missing (nearest: 'Close')" in finding.summary
    assert "'volume' is missing (nearest: 'volum')" in finding.summary
    assert finding.numbers["missing"] == 2
    assert all(finding.response)


@pytest.mark.parametrize(
    ("change", "expected_text"),
    [
        (add_null, "column 'high' must have no nulls, got 1 of 300, first at row 7"),
        (add_infinity, "column 'low' must be finite"),
        (lambda b: b.iloc[::-1], "the index must be sorted"),
        (lambda b: b.reset_index(drop=True), "the index must be named 'date'"),
        (lambda b: b.assign(volume="many"), "column 'volume' must be float"),
        (lambda b: pd.concat([b, b.tail(1)]), "the index must be unique"),
    ],
)
def test_other_violations_are_a_raw_schema_mismatch(change, expected_text: str) -> None:
    finding = check_raw_schema(change(BARS), RAW_SCHEMA)

    assert (finding.outcome, finding.fault) == ("fail", "raw schema mismatch")
    assert expected_text in finding.summary
    assert all(finding.response)


def test_check_fails_exactly_where_validate_schema_raises() -> None:
    for table in (BARS, rename_columns(BARS), add_null(BARS), BARS.iloc[::-1], BARS.iloc[:0]):
        try:
            validate_schema(table, RAW_SCHEMA, "raw")
            has_raised = False
        except SchemaError:
            has_raised = True
        assert (check_raw_schema(table, RAW_SCHEMA).outcome == "fail") is has_raised


def test_non_table_is_rejected() -> None:
    finding = check_raw_schema(BARS.to_numpy(), RAW_SCHEMA)  # type: ignore[arg-type]

    assert (finding.outcome, finding.fault) == ("fail", "raw schema mismatch")
    assert "load_rows() must return a pandas DataFrame, got ndarray" in finding.summary


@pytest.mark.slow
def test_a_million_rows_are_checked_in_a_few_passes() -> None:
    bars = random_bars(20_000)
    raw = pd.concat([bars] * 50).set_axis(
        pd.date_range("2001", periods=1_000_000, freq="min", name="date")
    )

    assert check_raw_schema(raw, RAW_SCHEMA).outcome == "pass"
    assert relative_duration(lambda: check_raw_schema(raw, RAW_SCHEMA), raw.copy) < 5  # 0.8
