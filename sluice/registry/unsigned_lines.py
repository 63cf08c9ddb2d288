"""Describes the unsigned lines of the log for a person who reviews them."""

import json
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
    """One line of the log that is not signed yet."""

    line: int = Field(description="Number of the line.")
    at: datetime | None = Field(description="Time of the change according to the row, UTC.")
    actor: str = Field(description="Actor according to the row; empty if the row has none.")
    what: str = Field(description="Description of the added row.")


def describe_lines(connection: Connection, *, since: int) -> list[UnsignedLine]:
    """Return descriptions of all lines of the log after line number ``since``, in order.

    Raises:
        IntegrityError: The row of a line is missing, or its table is not part of the registry.
    """
    tables = {table.name: table for table in LOGGED_TABLES}
    lines = connection.execute(
        sa.select(log.c.number, log.c.entity, log.c.key)
        .where(log.c.number > since)
        .order_by(log.c.number)
    ).all()
    return [
        _describe(connection, line.number, line.entity, line.key, tables.get(line.entity))
        for line in lines
    ]


def _describe(
    connection: Connection, number: int, entity: str, key_text: str, table: Table | None
) -> UnsignedLine:
    row: Row[Any] | None = None
    if table is not None:
        key = zip(table.primary_key, json.loads(key_text), strict=True)
        query = sa.select(table).where(*(column == value for column, value in key))
        row = connection.execute(query).first()
    if table is None or row is None:
        raise IntegrityError(
            f"Line {number} of the log refers to {entity} {key_text}, which is missing.",
            cause="The registry's database was edited manually or damaged.",
            fix="Restore the database from a backup.",
        )
    values = row._mapping
    time_column = next(column.name for column in table.c if isinstance(column.type, UtcTime))
    return UnsignedLine(
        line=number,
        at=values[time_column],
        actor=_escape_controls(values.get("actor", "")),
        what=_escape_controls(_describe_row(table, values, key_text)),
    )


def _escape_controls(text: str) -> str:
    """Escape control characters, because an attacker may have written the text.

    On a terminal, control characters could hide or change what is printed.
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _describe_row(table: Table, values: Any, key_text: str) -> str:
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
