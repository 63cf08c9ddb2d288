"""The log: every row of the append-only tables as one link of a hash chain (REG-2).

A line holds the digest of its row, the digest of the line before, and its own; the head holds the
number of lines and the last digest. So a changed byte, a removed line (the last one too), an
edited row and two lines that changed places all leave a chain that does not add up. Whoever can
write the database can also write a new chain: against that, sign the head (see ``signing``).
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row, Table

from sluice.base.digests import digest_json
from sluice.base.errors import IntegrityError
from sluice.registry.tables import DIGEST_LENGTH, log, log_head

EMPTY = "0" * 64
"""What stands for the digest before the first line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Where the log ends."""

    lines: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """A new row, and the digest of its line in the log: unique, and the same for ever."""

    row: Row[Any]
    digest: str


def start(connection: Connection) -> None:
    """Make the head of an empty log."""
    connection.execute(sa.insert(log_head).values(only_row=1, lines=0, digest=EMPTY))


def load_head(connection: Connection) -> Head:
    """Return where the log says that it ends.

    Raises:
        IntegrityError: It says nothing.
    """
    return _head(connection, sa.select(log_head.c.lines, log_head.c.digest))


def append(connection: Connection, table: Table, **values: Any) -> Appended:
    """Add one row to an append-only table, and its line to the log."""
    # Locked before the row is written: two writers of one receipt would wait for each other.
    head = lock_head(connection)
    row = connection.execute(sa.insert(table).values(values).returning(*table.c)).one()
    return Appended(row=row, digest=_extend(connection, head, [(table, row)]))


def write_down(connection: Connection, rows: Iterable[tuple[Table, Row[Any]]]) -> None:
    """Add the lines of rows that are there already, as a migration finds them."""
    _extend(connection, lock_head(connection), rows)


def row_key(table: Table, row: Row[Any]) -> list[Any]:
    """Return the values of the row's primary key."""
    return [_plain(row._mapping[column.name]) for column in table.primary_key]


def row_digest(row: Row[Any]) -> str:
    """Return the digest of a row: every column, under its name."""
    return digest_json({name: _plain(value) for name, value in row._mapping.items()})


def line_digest(*, number: int, entity: str, key: str, content: str, previous: str) -> str:
    """Return the digest of one line."""
    return digest_json([_plain(part) for part in (number, entity, key, content, previous)])


def find_digest(connection: Connection, table: Table, row_id: int) -> str:
    """Return the digest of the line that tells of a row.

    Raises:
        IntegrityError: There is none: the row was written past the ledger.
    """
    return str(_find_line(connection, table, key_text([row_id])).digest)


def find_number(connection: Connection, table: Table, row_id: int) -> int:
    """Return the number of the line that tells of a row: what came later has a higher one.

    Raises:
        IntegrityError: There is none: the row was written past the ledger.
    """
    return int(_find_line(connection, table, key_text([row_id])).number)


def line_numbers(connection: Connection, table: Table) -> dict[str, int]:
    """Return the number of every line that tells of a row of a table, by the row's key as text."""
    query = sa.select(log.c.key, log.c.number).where(log.c.entity == table.name)
    return {row.key: row.number for row in connection.execute(query)}


def require_as_logged(connection: Connection, table: Table, row: Row[Any]) -> None:
    """Refuse a row that its line in the log does not tell of.

    Raises:
        IntegrityError: There is no such line, or the row was changed since it was added.
    """
    key = key_text(row_key(table, row))
    line = _find_line(connection, table, key)
    if line.content != row_digest(row):
        raise _edited(f"{table.name} {key} is not as line {line.number} of the log says.")


def require_never_there(connection: Connection, table: Table, key: list[Any]) -> None:
    """Refuse that a row is missing which a line in the log tells of.

    Raises:
        IntegrityError: There is such a line: the row was removed past the ledger.
    """
    if connection.execute(_lines(table, key_text(key))).first() is not None:
        raise _edited(f"{table.name} {key_text(key)} is in the log, and the row is gone.")


def line_number(table: Table) -> sa.ScalarSelect[int]:
    """Return the line of a row whose primary key is one digest: sorts rows as they were written."""
    key = sql_key(table)
    assert key is not None, "a digest needs no escape"
    query = sa.select(log.c.number).where(log.c.entity == table.name, log.c.key == key)
    return query.correlate(table).scalar_subquery()


def sql_key(table: Table) -> sa.ColumnElement[str] | None:
    """Return a row's key as the log holds it, for the database; None where only Python can."""
    first, *others = table.primary_key
    if others:
        return None
    if isinstance(first.type, sa.Integer):
        return sa.literal("[") + sa.cast(first, sa.String) + sa.literal("]")
    if getattr(first.type, "length", None) == DIGEST_LENGTH:
        return sa.literal('["') + first + sa.literal('"]')
    return None


def key_text(key: list[Any]) -> str:
    """Return a key as the log holds it."""
    return json.dumps(key)


def lock_head(connection: Connection) -> Head:
    """Return where the log ends, and let no other writer move it before this transaction ends."""
    return _head(connection, sa.select(log_head.c.lines, log_head.c.digest).with_for_update())


def _find_line(connection: Connection, table: Table, key: str) -> Row[Any]:
    line = connection.execute(_lines(table, key)).first()
    if line is None:
        raise _edited(f"{table.name} {key} has no line in the log.")
    return line


def _lines(table: Table, key: str) -> sa.Select[Any]:
    return sa.select(log).where(log.c.entity == table.name, log.c.key == key)


def _edited(what: str) -> IntegrityError:
    return IntegrityError(
        what,
        cause="The ledger's database was edited by hand or damaged.",
        fix="Run sluice registry verify, and restore the database from a backup.",
    )


def _head(connection: Connection, query: sa.Select[tuple[int, str]]) -> Head:
    row = connection.execute(query).first()
    if row is None:
        raise _edited("The log of the registry has lost its head.")
    if not (isinstance(row.lines, int) and isinstance(row.digest, str)):
        raise _edited("The head of the registry's log cannot be read.")
    return Head(lines=row.lines, digest=row.digest)


def _extend(connection: Connection, head: Head, rows: Iterable[tuple[Table, Row[Any]]]) -> str:
    number, previous, lines = head.lines, head.digest, []
    for table, row in rows:
        number += 1
        line = {
            "number": number,
            "entity": table.name,
            "key": key_text(row_key(table, row)),
            "content": row_digest(row),
            "previous": previous,
        }
        previous = line_digest(**line)  # type: ignore[arg-type]
        lines.append(line | {"digest": previous})
    if lines:
        connection.execute(sa.insert(log), lines)
        connection.execute(sa.update(log_head).values(lines=number, digest=previous))
    return previous


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    if isinstance(value, bytes):  # SQLite keeps them in any column; no text is a list
        return [value.hex()]
    return value
