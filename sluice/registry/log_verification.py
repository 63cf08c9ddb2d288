"""Checking the log against itself, and the tables against the log: all of it, or some rows."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row, Table

from sluice.base.digests import short
from sluice.base.errors import IntegrityError, RegistryUnsound
from sluice.registry.log import (
    EMPTY,
    key_text,
    line_digest,
    load_head,
    row_digest,
    row_key,
    sql_key,
)
from sluice.registry.records import Finding
from sluice.registry.tables import LOGGED, log

_FIX = "The database was edited by hand or damaged: restore it from a backup."
_MAX_KEYS = 500
"""Values in one IN list; SQLite takes 999 in its oldest builds."""

Chosen = tuple[Table, sa.ColumnElement[bool]]
"""Rows of one table: those that the condition is true of."""


def check(connection: Connection) -> Iterator[Finding]:
    """Yield what does not hold; triggers and the order of ids are not relied on.

    Cost:
        Reads every row of the registry once.
    """
    lines = connection.execute(sa.select(log).order_by(log.c.number)).all()
    yield from _check_chain(connection, lines)
    told = {(line.entity, line.key): line for line in lines}
    for table in LOGGED:
        yield from _check_table(connection, table, told)
    for entity, key in told:
        yield _found(f"{entity} {key} is in the log, and the row is gone.")


def require_sound(connection: Connection) -> None:
    """Refuse to go on with a log that does not hold.

    Raises:
        RegistryUnsound: The message names the first finding.
    """
    _require(check(connection))


def _require(findings: Iterator[Finding]) -> None:
    first = next(findings, None)
    if first is not None:
        raise RegistryUnsound(
            f"The log of the registry does not hold: {first.what}",
            fix=f"{first.fix} To list all findings: sluice registry verify",
        )


def check_rows(connection: Connection, chosen: Sequence[Chosen]) -> Iterator[Finding]:
    """Yield what does not hold of some rows, of their lines and of the end of the log.

    A line must be the link between its neighbours. So a row that was edited or added past the
    ledger is found, with or without a line of its own; a rewritten chain is not, nor by ``check``.

    Cost:
        Reads the rows chosen and three lines of the log for each, however long the log is; counts
        the others.
    """
    rows = [
        (table, row)
        for table, condition in chosen
        for row in connection.execute(_as_stored(table).where(condition))
    ]
    lines = _lines_of(connection, rows)
    for table, row in rows:
        line = lines.get((table.name, key_text(row_key(table, row))))
        if line is None:
            yield _found(f"{_name(table, row)} has no line in the log.", row)
        elif line.content != row_digest(row):
            yield _found(f"{_name(table, row)} is not as line {line.number} says.", row)
    yield from _check_neighbours(connection, list(lines.values()))
    yield from _check_end(connection)


def check_removed(connection: Connection) -> Iterator[Finding]:
    """Yield each row that the log tells of and that is gone.

    Cost:
        Reads the key of every row; most are compared in the database.
    """
    for table in LOGGED:
        told = sa.select(log.c.key).where(log.c.entity == table.name)
        as_text = sql_key(table)
        if as_text is None:
            rows: Iterable[Any] = connection.execute(sa.select(*table.primary_key))
            kept = {key_text(row_key(table, row)) for row in rows}
            gone = set(connection.execute(told).scalars()) - kept
        else:  # not NOT IN, which one NULL would make true of nothing
            gone = set(connection.execute(sa.except_(told, sa.select(as_text))).scalars())
        for key in sorted(gone):
            yield _found(f"{table.name} {key} is in the log, and the row is gone.")


def require_table(connection: Connection, table: Table) -> None:
    """Refuse to rely on a table with a row that is not as the log says.

    Raises:
        RegistryUnsound: The message names the first finding.
    """
    lines = connection.execute(sa.select(log).where(log.c.entity == table.name))
    _require(_check_table(connection, table, {(line.entity, line.key): line for line in lines}))


def _check_table(
    connection: Connection, table: Table, told: dict[tuple[str, str], Row[Any]]
) -> Iterator[Finding]:
    """Yield each row that is not as its line says; what is left in ``told`` has no row."""
    for row in connection.execute(_as_stored(table)):
        line = told.pop((table.name, key_text(row_key(table, row))), None)
        if line is None:
            yield _found(f"{_name(table, row)} has no line in the log.", row)
        elif line.content != row_digest(row):
            yield _found(f"{_name(table, row)} is not as line {line.number} says.", row)


def _lines_of(
    connection: Connection, rows: Iterable[tuple[Table, Row[Any]]]
) -> dict[tuple[str, str], Row[Any]]:
    keys: dict[str, list[str]] = {}
    for table, row in rows:
        keys.setdefault(table.name, []).append(key_text(row_key(table, row)))
    return {
        (entity, line.key): line
        for entity, wanted in keys.items()
        for part in _parts(wanted)
        for line in connection.execute(
            sa.select(log).where(log.c.entity == entity, log.c.key.in_(part))
        )
    }


def _check_neighbours(connection: Connection, lines: Sequence[Row[Any]]) -> Iterator[Finding]:
    numbers = {n + step for n in (line.number for line in lines) for step in (-1, 1)}
    found = {
        line.number: line
        for part in _parts(sorted(numbers))
        for line in connection.execute(sa.select(log).where(log.c.number.in_(part)))
    }
    for line in lines:
        if _line_digest(line) != line.digest:
            yield _found(f"Line {line.number} of the log was changed.")
        before, after = found.get(line.number - 1), found.get(line.number + 1)
        if line.previous != (EMPTY if before is None else before.digest):
            yield _found(f"Line {line.number} of the log does not follow line {line.number - 1}.")
        if after is not None and after.previous != line.digest:
            yield _found(f"Line {after.number} of the log does not follow line {line.number}.")


def _check_end(connection: Connection) -> Iterator[Finding]:
    count, last = connection.execute(sa.select(sa.func.count(), sa.func.max(log.c.number))).one()
    digest = sa.select(log.c.digest).where(log.c.number == last)
    ends_in = connection.execute(digest).scalar() if count else EMPTY
    try:
        head = load_head(connection)
    except IntegrityError as error:
        yield _found(error.what)
        return
    if (head.lines, head.lines, head.digest) != (count, last or 0, ends_in):
        yield _found(
            f"The log has {count} lines up to number {last or 0}, and ends in "
            f"{short(str(ends_in))}; its head says {head.lines} and {short(head.digest)}."
        )


def _parts(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(values), _MAX_KEYS):
        yield values[start : start + _MAX_KEYS]


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
        if _line_digest(line) != line.digest:
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


def _line_digest(line: Row[Any]) -> str:
    return line_digest(
        number=line.number,
        entity=line.entity,
        key=line.key,
        content=line.content,
        previous=line.previous,
    )


def _name(table: Table, row: Row[Any]) -> str:
    return f"{table.name} {key_text(row_key(table, row))}"


def _found(what: str, row: Row[Any] | None = None) -> Finding:
    values = {} if row is None else row._mapping
    return Finding(
        model=str(values.get("model", "")), version=None, problem="log", what=what, fix=_FIX
    )
