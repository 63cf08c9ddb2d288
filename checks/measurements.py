"""What the engine's raw result of one expectation says, in our words (DATA-1)."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from sluice.checks.suite_report import BadRow, ExpectationResult, Outcome, describe
from sluice.data.expectations import EngineExpectation, Expectation, RowCount, StdBetween


def read_result(
    frame: pd.DataFrame, expectation: Expectation, raw: Mapping[str, Any]
) -> ExpectationResult:
    """Return what the engine found; ``raw`` holds its success, result and exception_info."""
    message = exception_text(raw["exception_info"])
    if message:
        return unmeasurable(expectation, f"The engine raised: {message}")
    if isinstance(expectation, EngineExpectation) and "element_count" not in raw["result"]:
        return _read_answer(expectation, raw, num_rows=len(frame))
    if isinstance(expectation, RowCount | StdBetween):
        return _read_number(expectation, raw, num_rows=len(frame))
    return _read_rows(frame, expectation, raw)


def exception_text(info: Mapping[str, Any]) -> str:
    """Return what the engine raised, or an empty string.

    The mapping is flat when nothing was raised, and holds one such mapping per metric otherwise.
    """
    entries = [info] if "raised_exception" in info else list(info.values())
    messages = [str(e.get("exception_message") or "") for e in entries if e["raised_exception"]]
    return "; ".join(dict.fromkeys(m or "the engine raised without a message" for m in messages))


def _read_answer(
    expectation: EngineExpectation, raw: Mapping[str, Any], *, num_rows: int
) -> ExpectationResult:
    """Read an expectation about a whole column or table: it holds or not, and what was observed."""
    observed = raw["result"].get("observed_value")
    is_number = isinstance(observed, int | float) and not isinstance(observed, bool)
    if is_number and not math.isfinite(observed):
        return unmeasurable(expectation, f"The number measured is {observed}.")
    shown = str(observed)
    return _result(
        expectation,
        "pass" if raw["success"] else "fail",
        num_rows=num_rows,
        observed=float(observed) if is_number else None,
        seen="" if observed is None else f"Measured {shown[:200]}.",
    )


def _read_number(
    expectation: Expectation, raw: Mapping[str, Any], *, num_rows: int
) -> ExpectationResult:
    seen = raw["result"].get("observed_value")
    observed = math.nan if seen is None else float(seen)
    if not math.isfinite(observed):
        return unmeasurable(
            expectation, f"The number measured is {observed}: too few or infinite values."
        )
    return _result(
        expectation,
        "pass" if raw["success"] else "fail",
        num_rows=num_rows,
        observed=observed,
        seen=f"Measured {observed:,.6g}.",
    )


def _read_rows(
    frame: pd.DataFrame, expectation: Expectation, raw: Mapping[str, Any]
) -> ExpectationResult:
    found = raw["result"]
    if "element_count" not in found:
        return unmeasurable(expectation, "The engine returned no result.")
    num_rows = int(found["element_count"]) - int(found.get("missing_count", 0))
    if num_rows == 0:
        return unmeasurable(expectation, "Every row is empty in this column.")
    num_bad = int(found["unexpected_count"])
    values = found.get("partial_unexpected_list") or []
    positions = found.get("partial_unexpected_index_list") or []
    examples = tuple(
        BadRow(position=int(at), label=_label(frame, int(at)), value=_value(value))
        for at, value in zip(positions, values, strict=False)  # some expectations give no positions
    )
    where = ", ".join(f"{row.value} at {row.label}" for row in examples[:3])
    text = f"{num_bad:,} of {num_rows:,} rows break it" + (f": {where}." if where else ".")
    return _result(
        expectation,
        "pass" if raw["success"] else "fail",
        num_rows=num_rows,
        num_bad=num_bad,
        examples=examples,
        seen=text,
    )


def _label(frame: pd.DataFrame, position: int) -> str:
    label = frame.index[position]
    if isinstance(label, pd.Timestamp) and label == label.normalize():
        return str(label.date())
    return str(label)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " and ".join(_value(part) for part in value)
    if value is None or value != value:
        return "no value"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def unmeasurable(expectation: Expectation, seen: str) -> ExpectationResult:
    """Return that nothing could be measured, and in ``seen`` why."""
    return _result(expectation, "unmeasurable", num_rows=0, seen=seen)


def _result(
    expectation: Expectation,
    outcome: Outcome,
    *,
    num_rows: int,
    seen: str,
    num_bad: int = 0,
    observed: float | None = None,
    examples: tuple[BadRow, ...] = (),
) -> ExpectationResult:
    return ExpectationResult(
        expectation=expectation,
        sentence=describe(expectation),
        outcome=outcome,
        implied=False,
        num_rows=num_rows,
        num_bad=num_bad,
        bad_rate=num_bad / num_rows if num_rows else 0.0,
        observed=observed,
        examples=examples,
        seen=seen,
    )
