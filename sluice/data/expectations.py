"""What a workload expects of a table's values, in words no engine owns.

The adapter in ``checks`` translates these to Great Expectations. An expectation of Great
Expectations itself, also a class of the user's own, may stand beside them. Bounds are meant wide:
an expectation states what cannot be true of good data, not what is usual.
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


class EngineExpectation(Record):
    """An expectation of Great Expectations, by its class and arguments.

    Made by ``declare`` from an object of a class such as ``ExpectColumnValuesToMatchRegex``. It
    brings no not-null along: its arguments alone say what holds.
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
        found: dict[str, Any] = json.loads(self.arguments)
        return found


Expectation = Annotated[
    NotNull | Between | AtLeast | InSet | RowCount | StdBetween | EngineExpectation,
    Field(discriminator="kind"),
]


def declare(expectations: Iterable[object], *, where: str) -> tuple[Expectation, ...]:
    """Return what a workload expects, with objects of Great Expectations as records.

    Args:
        expectations: Those of this module, and objects of any expectation class of Great
            Expectations.
        where: The attribute they were declared in, for the message.

    Raises:
        ContractError: One is neither; the message says which.
    """
    return tuple(_declare(one, where) for one in expectations)


def _declare(given: object, where: str) -> Expectation:
    own = NotNull | Between | AtLeast | InSet | RowCount | StdBetween | EngineExpectation
    if isinstance(given, own):
        return given
    bases = {f"{base.__module__}.{base.__qualname__}" for base in type(given).__mro__}
    if "great_expectations.expectations.expectation.Expectation" not in bases:
        raise ContractError(
            f"{where} must hold expectations, got {given!r} of type {type(given).__name__}.",
            fix="Give objects of sluice.data.expectations or of great_expectations.expectations, "
            "such as ExpectColumnValuesToMatchRegex(column='isin', regex='^[A-Z]{2}').",
        )
    configuration = given.configuration.to_json_dict()  # type: ignore[attr-defined]
    kept = {name: configuration[name] for name in ("severity",) if configuration.get(name)}
    return EngineExpectation(
        expectation=f"{type(given).__module__}:{type(given).__qualname__}",
        arguments=json.dumps(configuration["kwargs"] | kept, sort_keys=True),
    )
