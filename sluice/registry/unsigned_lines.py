"""Describes the unsigned lines of the log for a person who reviews them."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from pydantic import Field
from sqlalchemy import Connection, Row, Table

from sluice.base.digests import short
from sluice.base.errors import IntegrityError
from sluice.base.settings import Record
from sluice.registry.tables import (
    LOGGED_TABLES,
    UtcTime,
    history,
    log,
    receipts,
    rollout_transitions,
)

_DIGEST_COLUMNS = ("receipt", "candidate")
"""Columns with digests, which are shortened in descriptions."""


class UnsignedLine(Record):
    """A line of the log that is not signed yet, and a description of its row."""

    line: int = Field(description="Number of the line.")
    at: datetime | None = Field(description="Time of the change according to the row, UTC.")
    actor: str = Field(description="Actor according to the row; empty if the row has none.")
    what: str = Field(description="Description of the added row.")


def describe_lines(connection: Connection, *, after_line: int) -> list[UnsignedLine]:
    """Return descriptions of all lines of the log after line number ``after_line``, in order.

    Raises:
        IntegrityError: The row of a line is missing, or its table is not part of the registry.
    """
    tables = {table.name: table for table in LOGGED_TABLES}
    lines = connection.execute(
        sa.select(log.c.number, log.c.entity, log.c.key)
        .where(log.c.number > after_line)
        .order_by(log.c.number)
    ).all()
    return [
        _describe(connection, line.number, line.entity, line.key, tables.get(line.entity))
        for line in lines
    ]


def _describe(
    connection: Connection, line_number: int, table_name: str, key_text: str, table: Table | None
) -> UnsignedLine:
    row: Row[Any] | None = None
    if table is not None:
        key_columns = zip(table.primary_key, json.loads(key_text), strict=True)
        query = sa.select(table).where(*(column == value for column, value in key_columns))
        row = connection.execute(query).first()
    if table is None or row is None:
        raise IntegrityError(
            f"Line {line_number} of the log refers to {table_name} {key_text}, which is missing.",
            cause="The registry's database was edited manually or damaged.",
            fix="Restore the database from a backup.",
        )
    values = row._mapping
    time_column = next(column.name for column in table.c if isinstance(column.type, UtcTime))
    return UnsignedLine(
        line=line_number,
        at=values[time_column],
        actor=_escape_controls(values.get("actor", "")),
        what=_escape_controls(_describe_row(table, values, key_text)),
    )


def _escape_controls(text: str) -> str:
    """Return a text in which control characters are escaped.

    An attacker may have written the text, and control characters could hide or change what a
    terminal prints.
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _describe_row(table: Table, values: Mapping[Any, Any], key_text: str) -> str:
    if table is history:
        from_text = (
            "" if values["from_version"] is None else f" from version {values['from_version']}"
        )
        return (
            f"{values['action']} {values['model']} version {values['to_version']}{from_text} "
            f"({values['reason']})"
        )
    if table is receipts:
        return f"receipt {short(values['digest'])} of the {values['gate']} gate"
    if table is rollout_transitions:
        return f"{values['outcome']} of rollout {short(values['rollout'])}"
    fields = ", ".join(
        f"{name} {short(str(values[name])) if name in _DIGEST_COLUMNS else values[name]}"
        for name in ("model", "name", "version", "number", "receipt", "candidate")
        if name in values
    )
    return f"{table.name.removeprefix('sluice_')}: {fields or key_text}"
