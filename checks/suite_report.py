"""What a suite of expectations found in a table, and each expectation in words (DATA-1)."""

from typing import Literal

from pydantic import Field

from sluice.base.settings import Record
from sluice.data.expectations import (
    AtLeast,
    Between,
    EngineExpectation,
    Expectation,
    InSet,
    NotNull,
    RowCount,
    StdBetween,
)

Outcome = Literal["pass", "fail", "unmeasurable"]


class BadRow(Record):
    """One row that breaks an expectation."""

    position: int = Field(description="Row of the table, counted from 0.")
    label: str = Field(description="Its index label.")
    value: str = Field(description="What stands there.")


class ExpectationResult(Record):
    """What one expectation found."""

    expectation: Expectation
    sentence: str = Field(description="The expectation in words.")
    outcome: Outcome
    implied: bool = Field(description="True for a not-null that another expectation brought.")
    num_rows: int = Field(description="Rows measured; empty cells count only for not-null.")
    num_bad: int = Field(description="Measured rows that break it; 0 for a table-wide number.")
    bad_rate: float = Field(description="num_bad / num_rows, in 0..1.")
    observed: float | None = Field(description="The number a table-wide expectation measured.")
    examples: tuple[BadRow, ...] = Field(description="The first bad rows.")
    seen: str = Field(description="One sentence for people: what was found, where.")


class SuiteReport(Record):
    """What a suite of expectations found in one table."""

    suite: str
    num_rows: int
    results: tuple[ExpectationResult, ...] = Field(description="Declared first, then implied.")

    @property
    def outcome(self) -> Outcome:
        """'fail' when anything was measured and bad, else 'unmeasurable' when anything was not."""
        found = {result.outcome for result in self.results}
        return "fail" if "fail" in found else "unmeasurable" if "unmeasurable" in found else "pass"

    @property
    def passed(self) -> bool:
        """True only when every expectation was measured and held."""
        return self.outcome == "pass"

    @property
    def problems(self) -> tuple[ExpectationResult, ...]:
        """The results that did not pass."""
        return tuple(result for result in self.results if result.outcome != "pass")

    @property
    def summary(self) -> str:
        """What was found, for people: how many held, and each problem with its first rows."""
        if not self.results:
            return "No expectation is declared, so nothing was asked of the values."
        held = f"{len(self.results) - len(self.problems)} of {len(self.results)} expectations hold"
        lines = [f"{held} on {self.num_rows:,} rows."]
        for words, outcome in (("Bad", "fail"), ("Could not be measured", "unmeasurable")):
            lines += [
                f"{words}: {r.sentence} {r.seen}" for r in self.problems if r.outcome == outcome
            ]
        return " ".join(lines)


def describe(expectation: Expectation) -> str:
    """Return the expectation as a sentence.

    >>> describe(Between(column="rsi_14", low=0, high=100))
    'rsi_14 lies between 0 and 100 in every row.'
    """
    match expectation:
        case NotNull(column=column):
            return f"{column} has a value in every row."
        case Between(column=column, low=low, high=high, mostly=mostly):
            rows = "every row" if mostly == 1 else f"at least {mostly:.4g} of the rows"
            return f"{column} {_range(low, high)} in {rows}."
        case AtLeast(column=column, other=other):
            return f"{column} is at least {other} in every row."
        case InSet(column=column, values=values):
            return f"{column} is one of {', '.join(map(repr, values))} in every row."
        case RowCount(low=low):
            return f"The table has at least {low:,} rows."
        case StdBetween(column=column, low=low, high=high):
            return f"The standard deviation of {column} lies between {low:g} and {high:g}."
        case EngineExpectation(name=name, keywords=keywords):
            given = ", ".join(f"{key}={value!r}" for key, value in keywords.items())
            return f"{name}({given}) holds."


def _range(low: float | None, high: float | None) -> str:
    if low is None:
        return f"is at most {high:g}"
    return f"is at least {low:g}" if high is None else f"lies between {low:g} and {high:g}"


def columns_of(expectation: Expectation) -> tuple[str, ...]:
    """Return the columns an expectation speaks of; none for one about the table."""
    match expectation:
        case RowCount():
            return ()
        case AtLeast(column=column, other=other):
            return column, other
        case EngineExpectation(keywords=keywords):
            single = [
                keywords[key] for key in ("column", "column_A", "column_B") if key in keywords
            ]
            return tuple(single) or tuple(keywords.get("column_list", ()))
        case _:
            return (expectation.column,)
