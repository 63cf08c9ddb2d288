"""Converts Great Expectations' raw result of one expectation into an ``ExpectationResult``."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from sluice.checks.suite_report import (
    BadRow,
    ExpectationResult,
    Outcome,
    columns_of,
    describe,
)
from sluice.data.expectations import EngineExpectation, Expectation, RowCount, StdBetween


def read_result(
    frame: pd.DataFrame, expectation: Expectation, raw_result: Mapping[str, Any]
) -> ExpectationResult:
    """Convert a raw result, which contains success, result and exception_info."""
    message = exception_text(raw_result["exception_info"])
    if message:
        return unmeasurable(expectation, f"Great Expectations raised: {message}")
    if isinstance(expectation, EngineExpectation) and "element_count" not in raw_result["result"]:
        return _read_aggregate(expectation, raw_result, num_rows=len(frame))
    if isinstance(expectation, RowCount | StdBetween):
        return _read_number(expectation, raw_result, num_rows=len(frame))
    return _read_rows(frame, expectation, raw_result)


def exception_text(exception_info: Mapping[str, Any]) -> str:
    """Return the messages of the exceptions that Great Expectations raised, or an empty string.

    The argument is one exception record if nothing was raised. Otherwise it contains one record for
    each metric.
    """
    entries = (
        [exception_info] if "raised_exception" in exception_info else list(exception_info.values())
    )
    messages = [str(e.get("exception_message") or "") for e in entries if e["raised_exception"]]
    return "; ".join(dict.fromkeys(m or "an exception without a message" for m in messages))


def _read_aggregate(
    expectation: EngineExpectation, raw_result: Mapping[str, Any], *, num_rows: int
) -> ExpectationResult:
    """Convert the result of an ``EngineExpectation`` whose result has no row counts."""
    observed = raw_result["result"].get("observed_value")
    is_number = isinstance(observed, int | float) and not isinstance(observed, bool)
    if is_number and not math.isfinite(observed):
        return unmeasurable(expectation, f"The measured number is {observed}.")
    return _make_result(
        expectation,
        "pass" if raw_result["success"] else "fail",
        num_rows=num_rows,
        observed=float(observed) if is_number else None,
        message="" if observed is None else f"Measured {str(observed)[:200]}.",
    )


def _read_number(
    expectation: Expectation, raw_result: Mapping[str, Any], *, num_rows: int
) -> ExpectationResult:
    """Convert the result of an expectation on one number, such as the row count."""
    value = raw_result["result"].get("observed_value")
    observed = math.nan if value is None else float(value)
    if not math.isfinite(observed):
        return unmeasurable(
            expectation, f"The measured number is {observed}: too few values, or infinite values."
        )
    return _make_result(
        expectation,
        "pass" if raw_result["success"] else "fail",
        num_rows=num_rows,
        observed=observed,
        message=f"Measured {observed:,.6g}.",
    )


def _read_rows(
    frame: pd.DataFrame, expectation: Expectation, raw_result: Mapping[str, Any]
) -> ExpectationResult:
    """Convert the result of an expectation on every row."""
    counts = raw_result["result"]
    if "element_count" not in counts:
        return unmeasurable(expectation, "Great Expectations returned no result.")
    num_rows = int(counts["element_count"]) - int(counts.get("missing_count", 0))
    if num_rows == 0:
        columns = columns_of(expectation)
        return unmeasurable(
            expectation,
            "All values of this column are missing."
            if len(columns) == 1
            else f"No row has values in all of the columns {', '.join(columns)}.",
        )
    num_bad = int(counts["unexpected_count"])
    values = counts.get("partial_unexpected_list") or []
    positions = counts.get("partial_unexpected_index_list") or []
    examples = tuple(
        BadRow(
            position=int(index), label=_format_label(frame, int(index)), value=_format_value(value)
        )
        for index, value in zip(positions, values, strict=False)  # some results have no positions
    )
    examples_text = ", ".join(f"{row.value} at {row.label}" for row in examples[:3])
    message = f"{num_bad:,} of {num_rows:,} rows violate the expectation"
    message += f": {examples_text}." if examples_text else "."
    return _make_result(
        expectation,
        "pass" if raw_result["success"] else "fail",
        num_rows=num_rows,
        num_bad=num_bad,
        examples=examples,
        message=message,
    )


def _format_label(frame: pd.DataFrame, position: int) -> str:
    label = frame.index[position]
    if isinstance(label, pd.Timestamp) and label == label.normalize():
        return str(label.date())
    return str(label)


def _format_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " and ".join(_format_value(item) for item in value)
    if value is None or value != value:
        return "no value"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def unmeasurable(expectation: Expectation, message: str) -> ExpectationResult:
    """Return the result of an expectation that cannot be measured; ``message`` says why."""
    return _make_result(expectation, "unmeasurable", num_rows=0, message=message)


def _make_result(
    expectation: Expectation,
    outcome: Outcome,
    *,
    num_rows: int,
    message: str,
    num_bad: int = 0,
    observed: float | None = None,
    examples: tuple[BadRow, ...] = (),
) -> ExpectationResult:
    return ExpectationResult(
        expectation=expectation,
        sentence=describe(expectation),
        outcome=outcome,
        implied=False,  # ``validate_table`` sets it for implied expectations
        num_rows=num_rows,
        num_bad=num_bad,
        bad_rate=num_bad / num_rows if num_rows else 0.0,
        observed=observed,
        examples=examples,
        message=message,
    )
