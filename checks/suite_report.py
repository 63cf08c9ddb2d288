"""Results of an expectation suite on one table, and descriptions of the expectations."""

from typing import Literal

from pydantic import Field

from sluice.base.pluralize import pluralize
from sluice.base.settings import Record
from sluice.data.expectations import (
    Between,
    EngineExpectation,
    Expectation,
    GreaterOrEqual,
    InSet,
    NotNull,
    RowCount,
    StdBetween,
)

Outcome = Literal["pass", "fail", "unmeasurable"]


class BadRow(Record):
    """One row that violates an expectation."""

    position: int = Field(description="Position of the row in the table, from 0.")
    label: str = Field(description="Index label of the row.")
    value: str = Field(description="Value of the row, as text.")


class ExpectationResult(Record):
    """Result of one expectation."""

    expectation: Expectation
    sentence: str = Field(description="Description of the expectation.")
    outcome: Outcome
    implied: bool = Field(
        description="True for a not-null expectation that another expectation implies."
    )
    num_rows: int = Field(
        description="Number of measured rows. Only a not-null expectation measures rows with a "
        "missing value."
    )
    num_bad: int = Field(
        description="Number of rows that violate the expectation; 0 for an expectation on one "
        "number of the table, such as the row count."
    )
    bad_rate: float = Field(description="``num_bad`` divided by ``num_rows``.")
    observed: float | None = Field(
        description="Measured number of the table, such as the row count; None for an expectation "
        "on rows."
    )
    examples: tuple[BadRow, ...] = Field(description="First rows that violate the expectation.")
    message: str = Field(description="Result in one sentence.")


class ExpectationSuiteReport(Record):
    """Results of an expectation suite on one table."""

    suite: str
    num_rows: int
    results: tuple[ExpectationResult, ...] = Field(
        description="Results of declared expectations, then of implied expectations."
    )

    @property
    def outcome(self) -> Outcome:
        """'fail' if any expectation failed, else 'unmeasurable' if any was not measured."""
        outcomes = {result.outcome for result in self.results}
        return (
            "fail"
            if "fail" in outcomes
            else "unmeasurable"
            if "unmeasurable" in outcomes
            else "pass"
        )

    @property
    def passed(self) -> bool:
        """True only if every expectation was measured and passed."""
        return self.outcome == "pass"

    @property
    def problems(self) -> tuple[ExpectationResult, ...]:
        """Results that did not pass."""
        return tuple(result for result in self.results if result.outcome != "pass")

    @property
    def summary(self) -> str:
        """Number of passed expectations, and each failed or unmeasurable expectation."""
        if not self.results:
            return "No expectations are declared, so the values were not checked."
        passed_text = (
            f"{len(self.results) - len(self.problems)} of {len(self.results)} expectations pass"
        )
        lines = [f"{passed_text} on {self.num_rows:,} rows."]
        for heading, outcome in (("Failed", "fail"), ("Could not be measured", "unmeasurable")):
            lines += [
                f"{heading}: {r.sentence} {r.message}"
                for r in self.problems
                if r.outcome == outcome
            ]
        return " ".join(lines)


def describe(expectation: Expectation) -> str:
    """Return a sentence that describes the expectation.

    >>> describe(Between(column="rsi_14", low=0, high=100))
    'rsi_14 is between 0 and 100 in every row.'
    """
    match expectation:
        case NotNull(column=column):
            return f"{column} has a value in every row."
        case Between(column=column, low=low, high=high, mostly=mostly):
            rows_text = "every row" if mostly == 1 else f"at least {mostly:.4g} of the rows"
            return f"{column} {_describe_range(low, high)} in {rows_text}."
        case GreaterOrEqual(column=column, other=other):
            return f"{column} is at least {other} in every row."
        case InSet(column=column, values=values):
            return f"{column} is one of {', '.join(map(repr, values))} in every row."
        case RowCount(low=low):
            return f"The table has at least {pluralize(low, 'row')}."
        case StdBetween(column=column, low=low, high=high):
            return f"The standard deviation of {column} is between {low:g} and {high:g}."
        case EngineExpectation(name=name, keywords=keywords):
            arguments = ", ".join(f"{key}={value!r}" for key, value in keywords.items())
            return f"{name}({arguments}) passes."


def _describe_range(low: float | None, high: float | None) -> str:
    if low is None:
        return f"is at most {high:g}"
    return f"is at least {low:g}" if high is None else f"is between {low:g} and {high:g}"


def columns_of(expectation: Expectation) -> tuple[str, ...]:
    """Return the columns of an expectation; empty for an expectation on the table."""
    match expectation:
        case RowCount():
            return ()
        case GreaterOrEqual(column=column, other=other):
            return column, other
        case EngineExpectation(keywords=keywords):
            named_columns = [
                keywords[key] for key in ("column", "column_A", "column_B") if key in keywords
            ]
            return tuple(named_columns) or tuple(keywords.get("column_list", ()))
        case _:
            return (expectation.column,)
