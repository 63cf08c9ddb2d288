"""Expectations of a workload about the values of a table, independent of any validation engine.

The adapter in ``checks`` translates them to Great Expectations. It also adds a ``NotNull``
expectation for every column that an expectation of this module names. A workload may also use
expectations of Great Expectations itself, including custom classes. For the columns of these
expectations, the adapter adds nothing.

Bounds should be wide: they should exclude values that are impossible, not values that are unusual.
"""

import json
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field

from sluice.base.errors import ContractError
from sluice.base.settings import Record


class NotNull(Record):
    """Every row of ``column`` has a value."""

    kind: Literal["not_null"] = "not_null"
    column: str


class Between(Record):
    """At least a share ``mostly`` of the non-null values is within [low, high].

    A bound that is None is not checked.
    """

    kind: Literal["between"] = "between"
    column: str
    low: float | None = None
    high: float | None = None
    mostly: float = Field(
        1.0, gt=0, le=1, description="Minimum share of the non-null values within the bounds."
    )


class GreaterOrEqual(Record):
    """In every row, the value of ``column`` is at least the value of the column ``other``."""

    kind: Literal["at_least"] = "at_least"
    column: str
    other: str


class InSet(Record):
    """Every non-null value of ``column`` is one of ``values``."""

    kind: Literal["in_set"] = "in_set"
    column: str
    values: tuple[str | int, ...]


class RowCount(Record):
    """The table has at least ``low`` rows."""

    kind: Literal["row_count"] = "row_count"
    low: int = Field(ge=1)


class StdBetween(Record):
    """The standard deviation of ``column`` is within [low, high]."""

    kind: Literal["std_between"] = "std_between"
    column: str
    low: float
    high: float


class EngineExpectation(Record):
    """An expectation of Great Expectations, defined by its class and arguments.

    ``as_expectations`` creates it from an object of a class such as
    ``ExpectColumnValuesToMatchRegex``. Unlike for the other kinds, the adapter adds no ``NotNull``
    expectation for its columns.
    """

    kind: Literal["engine"] = "engine"
    expectation: str = Field(description="Import path of the class, 'module:Class'.")
    arguments: str = Field(description="Keyword arguments of the class, as JSON.")

    @property
    def name(self) -> str:
        """Name of the class."""
        return self.expectation.rpartition(":")[2]

    @property
    def keywords(self) -> dict[str, Any]:
        """Keyword arguments of the class."""
        keywords: dict[str, Any] = json.loads(self.arguments)
        return keywords


Expectation = Annotated[
    NotNull | Between | GreaterOrEqual | InSet | RowCount | StdBetween | EngineExpectation,
    Field(discriminator="kind"),
]


def as_expectations(expectations: Iterable[object], *, where: str) -> tuple[Expectation, ...]:
    """Return the expectations as records, with objects of Great Expectations converted.

    Args:
        expectations: Expectations of this module, and objects of expectation classes of Great
            Expectations.
        where: Attribute in which they were declared, for the message.

    Raises:
        ContractError: An object is not an expectation; the message names it.
    """
    return tuple(_as_expectation(expectation, where) for expectation in expectations)


def _as_expectation(value: object, where: str) -> Expectation:
    records = NotNull | Between | GreaterOrEqual | InSet | RowCount | StdBetween | EngineExpectation
    if isinstance(value, records):
        return value
    # The classes are compared by name, so that Great Expectations need not be imported.
    bases = {f"{base.__module__}.{base.__qualname__}" for base in type(value).__mro__}
    if "great_expectations.expectations.expectation.Expectation" not in bases:
        raise ContractError(
            f"{where} must contain expectations, got {value!r} of type {type(value).__name__}.",
            fix="Use objects of sluice.data.expectations or of great_expectations.expectations, "
            "such as ExpectColumnValuesToMatchRegex(column='isin', regex='^[A-Z]{2}').",
        )
    configuration = value.configuration.to_json_dict()  # type: ignore[attr-defined]
    severity = {name: configuration[name] for name in ("severity",) if configuration.get(name)}
    return EngineExpectation(
        expectation=f"{type(value).__module__}:{type(value).__qualname__}",
        arguments=json.dumps(configuration["kwargs"] | severity, sort_keys=True),
    )
