"""What the lines of the log that no key signed are about, for a person who decides on them."""

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
    LOGGED,
    UtcTime,
    history,
    log,
    receipts,
    rollout_transitions,
)


class UnsignedLine(Record):
    """One line of the log that is not signed yet."""

    line: int = Field(description="Its number.")
    at: datetime | None = Field(description="When the row says that it was written, UTC.")
    actor: str = Field(description="Who the row says wrote it; empty when it names nobody.")
    what: str = Field(description="What was added.")


def unsigned_lines(connection: Connection, *, since: int) -> list[UnsignedLine]:
    """Return every line after ``since``, in order.

    Raises:
        IntegrityError: A line tells of a row that is gone, or of no table of the registry.
    """
    tables = {table.name: table for table in LOGGED}
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
    connection: Connection, number: int, entity: str, text: str, table: Table | None
) -> UnsignedLine:
    row: Row[Any] | None = None
    if table is not None:
        key = zip(table.primary_key, json.loads(text), strict=True)
        query = sa.select(table).where(*(column == value for column, value in key))
        row = connection.execute(query).first()
    if table is None or row is None:
        raise IntegrityError(
            f"Line {number} of the log tells of {entity} {text}, which is not there.",
            cause="The ledger's database was edited by hand or damaged.",
            fix="Restore the database from a backup.",
        )
    values = row._mapping
    moment = next(column.name for column in table.c if isinstance(column.type, UtcTime))
    return UnsignedLine(
        line=number,
        at=values[moment],
        actor=_visible(values.get("actor", "")),
        what=_visible(_what(table, values, text)),
    )


def _visible(text: str) -> str:
    """Spell control characters out: the text may be an attacker's, and is read on a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _what(table: Table, values: Any, key: str) -> str:
    if table is history:
        before = "" if values["from_version"] is None else f" from version {values['from_version']}"
        return (
            f"{values['action']} {values['model']} version {values['to_version']}{before} "
            f"({values['reason']})"
        )
    if table is receipts:
        return f"receipt {short(values['digest'])} of the {values['gate']} gate"
    if table is rollout_transitions:
        return f"{values['outcome']} of rollout {short(values['rollout'])}"
    about = ", ".join(
        f"{name} {short(str(values[name]))}"
        for name in ("model", "name", "version", "number", "receipt", "candidate")
        if name in values
    )
    return f"{table.name.removeprefix('sluice_')}: {about or key}"
