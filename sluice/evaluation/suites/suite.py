"""A regression suite: rows with a name, that every candidate is looked at on (DATA-5).

Rows are named by their label, so that a suite survives new data, and a suite never changes: its
digest covers its rows, their reasons and how they were chosen.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from sluice.base.digests import digest_json, short
from sluice.base.errors import ContractError
from sluice.base.settings import Record

MOST_ROWS = 10_000
"""A suite is looked at row by row, and its result is one record."""

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")


class HighestLoss(Record):
    """Rows on which a model's loss was the highest."""

    kind: Literal["highest_loss"] = "highest_loss"
    subject: str = Field(description="Digest of the model.")
    window: str = Field(description="Digest of what it was scored on.")
    share: float = Field(description="Of the window's rows, in 0..1.")
    chosen_by: tuple[int, ...] = Field(
        description="Seeds whose losses chose the rows. The model's other seeds are what it is "
        "measured by: those that chose were unlucky there, and any other draw looks better."
    )


class Query(Record):
    """Rows of the feature frame for which a query was true; the text is shown, never evaluated."""

    kind: Literal["query"] = "query"
    expression: str


class FromFile(Record):
    """Rows that a file named."""

    kind: Literal["file"] = "file"
    file: str = Field(description="Name of the file, without its folder.")


class Failures(Record):
    """Rows that failed in use, as in a rollout."""

    kind: Literal["failures"] = "failures"
    source: str = Field(description="Where they failed, for people.")


def origin_words(origin: HighestLoss | Query | FromFile | Failures) -> str:
    """Say for people how the rows of a suite were chosen."""
    if isinstance(origin, HighestLoss):
        seeds = ", ".join(map(str, origin.chosen_by))
        measured = f" It is measured by its other seeds than {seeds}." if seeds else ""
        return (
            f"The {origin.share:.2%} of rows with the highest loss of {short(origin.subject)}."
            f"{measured} They are hard for that model: another of the same quality has its "
            "own hard rows elsewhere and tends to be ahead here."
        )
    if isinstance(origin, Query):
        return f"Rows where {origin.expression}."
    if isinstance(origin, FromFile):
        return f"Rows named by {origin.file}."
    return f"Rows that failed: {origin.source}."


Origin = Annotated[HighestLoss | Query | FromFile | Failures, Field(discriminator="kind")]


class SuiteRow(Record):
    """One row, and why it is here."""

    label: str
    reason: str = ""


class Suite(Record):
    """Named rows and how they were chosen; made by ``suite_of``."""

    name: str
    rows: tuple[SuiteRow, ...]
    origin: Origin

    @property
    def digest(self) -> str:
        """Digest of name, rows, reasons and origin."""
        return digest_json(self.model_dump(mode="json"))

    @property
    def labels(self) -> tuple[str, ...]:
        """The rows' labels, in the suite's order."""
        return tuple(row.label for row in self.rows)


class FiledSuite(Record):
    """One version of a suite, as the library holds it."""

    suite: Suite
    version: int = Field(ge=1, description="Counted from 1 for each name.")
    added_at: AwareDatetime


def suite_of(name: str, reasons: Mapping[str, str], origin: Origin) -> Suite:
    """Return the suite with these rows.

    Args:
        name: Lower-case letters, digits, '_' and '-', beginning with a letter.
        reasons: Why, by row label; an empty reason is allowed.
        origin: How the rows were chosen.

    Raises:
        ContractError: The name is none, or there are no rows or too many.
    """
    if _NAME.fullmatch(name) is None:
        raise ContractError(
            "A suite's name must be lower-case letters, digits, '_' and '-', at most 64 and "
            f"beginning with a letter, got {name[:80]!r}.",
            fix="Choose such a name.",
        )
    if not 1 <= len(reasons) <= MOST_ROWS:
        raise ContractError(
            f"Suite '{name}' must have 1 to {MOST_ROWS:,} rows, got {len(reasons):,}.",
            cause="It is for looking at single rows; the gate judges the whole window.",
            fix="Choose fewer rows." if reasons else "Choose at least one row.",
        )
    rows = tuple(SuiteRow(label=label, reason=reason) for label, reason in reasons.items())
    return Suite(name=name, rows=rows, origin=origin)
