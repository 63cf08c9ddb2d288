"""Checking the log against itself, and the tables against the log."""

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row, Table

from sluice.digests import short
from sluice.errors import IntegrityError
from sluice.registry.log import EMPTY, key_text, line_digest, load_head, row_digest, row_key
from sluice.registry.records import Finding
from sluice.registry.tables import LOGGED, log

_FIX = "The database was edited by hand or damaged: restore it from a backup."


def check(connection: Connection) -> Iterator[Finding]:
    """Yield what does not hold; triggers and the order of ids are not relied on.

    Cost:
        Reads every row of the registry once.
    """
    lines = connection.execute(sa.select(log).order_by(log.c.number)).all()
    yield from _check_chain(connection, lines)
    told = {(line.entity, line.key): line for line in lines}
    for table in LOGGED:
        for row in connection.execute(_as_stored(table)):
            line = told.pop((table.name, key_text(row_key(table, row))), None)
            if line is None:
                yield _found(f"{_name(table, row)} has no line in the log.", row)
            elif line.content != row_digest(row):
                yield _found(f"{_name(table, row)} is not as line {line.number} says.", row)
    for entity, key in told:
        yield _found(f"{entity} {key} is in the log, and the row is gone.")


def _as_stored(table: Table) -> sa.Select[Any]:
    """Select every row of a table, moments as the text that they are: one may be damaged."""
    columns = [sa.type_coerce(c, getattr(c.type, "impl", c.type)).label(c.name) for c in table.c]
    return sa.select(*columns).order_by(*table.primary_key)


def _check_chain(connection: Connection, lines: Sequence[Row[Any]]) -> Iterator[Finding]:
    number, previous = 0, EMPTY
    for line in lines:
        number += 1
        if line.number != number:
            missing = "is" if line.number == number + 1 else f"to {line.number - 1} are"
            yield _found(f"Line {number} {missing} missing from the log.")
        elif line.previous != previous:
            yield _found(f"Line {number} of the log does not follow line {number - 1}.")
        digest = line_digest(
            number=line.number,
            entity=line.entity,
            key=line.key,
            content=line.content,
            previous=line.previous,
        )
        if digest != line.digest:
            yield _found(f"Line {line.number} of the log was changed.")
        number, previous = line.number, line.digest
    try:
        head = load_head(connection)
    except IntegrityError as error:
        yield _found(error.what)
        return
    if (head.lines, head.digest) != (number, previous):
        yield _found(
            f"The log has {number} lines and ends in {short(previous)}; its head says "
            f"{head.lines} and {short(head.digest)}."
        )


def _name(table: Table, row: Row[Any]) -> str:
    return f"{table.name} {key_text(row_key(table, row))}"


def _found(what: str, row: Row[Any] | None = None) -> Finding:
    values = {} if row is None else row._mapping
    return Finding(
        model=str(values.get("model", "")), version=None, problem="log", what=what, fix=_FIX
    )
