"""What a workload expects of a table's values, in words no engine owns.

The adapter in ``checks`` translates these to Great Expectations. Bounds are meant wide: an
expectation states what cannot be true of good data, not what is usual.
"""

from typing import Annotated, Literal

from pydantic import Field

from sluice.settings import Record


class NotNull(Record):
    """Every row of ``column`` has a value."""

    kind: Literal["not_null"] = "not_null"
    column: str


class Between(Record):
    """At least ``mostly`` of the non-null values lie in [low, high], in the column's unit."""

    kind: Literal["between"] = "between"
    column: str
    low: float | None = None
    high: float | None = None
    mostly: float = Field(1.0, gt=0, le=1, description="Share of rows that must hold.")


class AtLeast(Record):
    """In every row the value of ``column`` is at least that of ``other``."""

    kind: Literal["at_least"] = "at_least"
    column: str
    other: str


class InSet(Record):
    """Every value of ``column`` is one of ``values``."""

    kind: Literal["in_set"] = "in_set"
    column: str
    values: tuple[str | int, ...]


class RowCount(Record):
    """The table has at least ``low`` rows."""

    kind: Literal["row_count"] = "row_count"
    low: int = Field(ge=1)


class StdBetween(Record):
    """The standard deviation of ``column`` lies in [low, high]: it is neither dead nor wild."""

    kind: Literal["std_between"] = "std_between"
    column: str
    low: float
    high: float


Expectation = Annotated[
    NotNull | Between | AtLeast | InSet | RowCount | StdBetween, Field(discriminator="kind")
]
