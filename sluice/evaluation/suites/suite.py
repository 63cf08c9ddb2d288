"""Regression suite: a named set of rows on which every candidate is evaluated.

Rows are identified by their index labels, so a suite remains valid when data are added. A suite is
immutable: its digest covers its rows, the reasons for their selection, and its origin.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from sluice.base.digests import digest_json, short
from sluice.base.errors import ContractError
from sluice.base.settings import Record

MAX_ROWS = 10_000
"""Maximum number of rows of a suite. People inspect the rows individually."""

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")


class HighestLoss(Record):
    """Origin of a suite: rows with the highest losses of a model."""

    kind: Literal["highest_loss"] = "highest_loss"
    subject: str = Field(description="Digest of the model.")
    window: str = Field(description="Digest of the scored data and rows.")
    share: float = Field(description="Share of the window's rows that were selected [rate].")
    chosen_by: tuple[int, ...] = Field(
        description="Seeds whose losses selected the rows. Only the other seeds of the model are "
        "evaluated on these rows, because the selecting seeds have high losses on them partly by "
        "chance."
    )


class Query(Record):
    """Origin of a suite: rows for which a query was true when the suite was created."""

    kind: Literal["query"] = "query"
    expression: str


class FromFile(Record):
    """Origin of a suite: rows of a file."""

    kind: Literal["file"] = "file"
    file: str = Field(description="Name of the file without its folder.")


class Failures(Record):
    """Origin of a suite: rows that failed in production, such as in a rollout."""

    kind: Literal["failures"] = "failures"
    source: str = Field(
        description="Event in which the rows failed, such as 'rollout of version 7'."
    )


def describe_origin(origin: HighestLoss | Query | FromFile | Failures) -> str:
    """Return a description of how the rows of a suite were selected."""
    if isinstance(origin, HighestLoss):
        seeds = ", ".join(map(str, origin.chosen_by))
        selection_text = (
            f" Its seeds {seeds} selected these rows and are not evaluated on them."
            if seeds
            else ""
        )
        return (
            f"The {origin.share:.2%} of rows with the highest losses of {short(origin.subject)}."
            f"{selection_text} These rows are hard for that model. Another model of the same "
            "quality has other hard rows, and tends to have lower losses on these rows."
        )
    if isinstance(origin, Query):
        return f"Rows for which {origin.expression}."
    if isinstance(origin, FromFile):
        return f"Rows of the file {origin.file}."
    return f"Failed rows: {origin.source}."


Origin = Annotated[HighestLoss | Query | FromFile | Failures, Field(discriminator="kind")]


class SuiteRow(Record):
    """One row of a suite, with the reason for its selection."""

    label: str
    reason: str = ""


class Suite(Record):
    """Named set of rows with its origin; created by ``make_suite``."""

    name: str
    rows: tuple[SuiteRow, ...]
    origin: Origin

    @property
    def digest(self) -> str:
        """Digest of name, rows, reasons and origin."""
        return digest_json(self.model_dump(mode="json"))

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the rows, in the order of the suite."""
        return tuple(row.label for row in self.rows)


class SuiteVersion(Record):
    """One stored version of a suite."""

    suite: Suite
    version: int = Field(ge=1, description="Version number, from 1 for each name.")
    added_at: AwareDatetime


def make_suite(name: str, reasons: Mapping[str, str], origin: Origin) -> Suite:
    """Return the suite with these rows.

    Args:
        name: Lower-case letters, digits, '_' and '-', starting with a letter.
        reasons: Reason for each row, by label; may be empty.
        origin: How the rows were selected.

    Raises:
        ContractError: The name is invalid, or the number of rows is not in 1..MAX_ROWS.
    """
    if _NAME.fullmatch(name) is None:
        raise ContractError(
            "The name of a suite must consist of at most 64 lower-case letters, digits, '_' and "
            f"'-', and start with a letter, got {name[:80]!r}.",
            fix="Choose a valid name.",
        )
    if not 1 <= len(reasons) <= MAX_ROWS:
        raise ContractError(
            f"Suite '{name}' must have 1 to {MAX_ROWS:,} rows, got {len(reasons):,}.",
            cause="Suites are for rows that people inspect; the gate compares the whole window.",
            fix="Choose fewer rows." if reasons else "Choose at least one row.",
        )
    rows = tuple(SuiteRow(label=label, reason=reason) for label, reason in reasons.items())
    return Suite(name=name, rows=rows, origin=origin)
