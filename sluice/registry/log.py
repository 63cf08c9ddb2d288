"""The log: a hash chain with one line for every row of the append-only tables.

A line contains the digest of its row, the digest of the previous line, and its own digest. The head
contains the number of lines and the digest of the last line. The chain reveals edited rows, and
changed, swapped or removed lines, even the last one. An attacker who can write the database can
also write a new chain; signatures of the head protect against this (see ``log_signatures``).
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

EMPTY_DIGEST = "0" * 64
"""Value of ``previous`` in the first line of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHead:
    """Head of the log: number of lines and digest of the last line."""

    num_lines: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendedRow:
    """A new row and the digest of its log line, which is unique and never changes."""

    row: Row[Any]
    digest: str


def create_head(connection: Connection) -> None:
    """Insert the head of an empty log."""
    connection.execute(sa.insert(log_head).values(only_row=1, lines=0, digest=EMPTY_DIGEST))


def load_head(connection: Connection) -> LogHead:
    """Return the stored head of the log.

    Raises:
        IntegrityError: The head is missing or unreadable.
    """
    return _load_head(connection, sa.select(log_head.c.lines, log_head.c.digest))


def append(connection: Connection, table: Table, **values: Any) -> AppendedRow:
    """Append one row to an append-only table, and its line to the log."""
    # The head is locked before the row is written, because two writers of the same receipt could
    # otherwise wait for each other forever.
    head = lock_head(connection)
    row = connection.execute(sa.insert(table).values(values).returning(*table.c)).one()
    return AppendedRow(row=row, digest=_append_lines(connection, head, [(table, row)]))


def append_existing_rows(connection: Connection, rows: Iterable[tuple[Table, Row[Any]]]) -> None:
    """Append the log lines of existing rows, for a migration."""
    _append_lines(connection, lock_head(connection), rows)


def row_key(table: Table, row: Row[Any]) -> list[Any]:
    """Return the primary key values of a row."""
    return [_json_value(row._mapping[column.name]) for column in table.primary_key]


def row_digest(row: Row[Any]) -> str:
    """Return the digest of all columns of a row, by name."""
    return digest_json({name: _json_value(value) for name, value in row._mapping.items()})


def line_digest(*, number: int, entity: str, key: str, content: str, previous: str) -> str:
    """Return the digest of one log line.

    Args:
        number: Number of the line.
        entity: Name of the table of the line's row.
        key: Primary key of the row, from ``encode_key``.
        content: Digest of the row.
        previous: Digest of the previous line.
    """
    return digest_json([_json_value(field) for field in (number, entity, key, content, previous)])


def find_line_digest(connection: Connection, table: Table, row_id: int) -> str:
    """Return the digest of the log line of a row.

    Raises:
        IntegrityError: The row has no line, because it was not written by Sluice.
    """
    return str(_find_line(connection, table, encode_key([row_id])).digest)


def find_line_number(connection: Connection, table: Table, row_id: int) -> int:
    """Return the number of the log line of a row; rows that were added later have higher numbers.

    Raises:
        IntegrityError: The row has no line, because it was not written by Sluice.
    """
    return int(_find_line(connection, table, encode_key([row_id])).number)


def load_line_numbers(connection: Connection, table: Table) -> dict[str, int]:
    """Return the log line number of every row of a table, by the row's key as text."""
    query = sa.select(log.c.key, log.c.number).where(log.c.entity == table.name)
    return {row.key: row.number for row in connection.execute(query)}


def require_row_matches_log(connection: Connection, table: Table, row: Row[Any]) -> None:
    """Reject a row that does not match its log line.

    Raises:
        IntegrityError: The row has no line, or was changed after it was added.
    """
    key = encode_key(row_key(table, row))
    line = _find_line(connection, table, key)
    if line.content != row_digest(row):
        raise _edited_error(f"{table.name} {key} does not match line {line.number} of the log.")


def require_never_logged(connection: Connection, table: Table, key: list[Any]) -> None:
    """Reject a missing row that has a log line.

    Raises:
        IntegrityError: The log has a line for the row, so the row was removed, but not by Sluice.
    """
    if connection.execute(_select_line(table, encode_key(key))).first() is not None:
        raise _edited_error(
            f"{table.name} {encode_key(key)} is in the log, but the row is missing."
        )


def select_line_number(table: Table) -> sa.ScalarSelect[int]:
    """Return a subquery for the log line number of a row, to sort rows in write order.

    The primary key of the table must be a single integer or digest.
    """
    key = sql_key(table)
    assert key is not None, "the primary key must be one integer or digest"
    query = sa.select(log.c.number).where(log.c.entity == table.name, log.c.key == key)
    return query.correlate(table).scalar_subquery()


def sql_key(table: Table) -> sa.ColumnElement[str] | None:
    """Return an SQL expression for the primary key of a row, in the format of the log.

    None unless the primary key is a single integer or digest, which needs no escaping in JSON.
    """
    first_column, *other_columns = table.primary_key
    if other_columns:
        return None
    if isinstance(first_column.type, sa.Integer):
        return sa.literal("[") + sa.cast(first_column, sa.String) + sa.literal("]")
    if getattr(first_column.type, "length", None) == DIGEST_LENGTH:
        return sa.literal('["') + first_column + sa.literal('"]')
    return None


def encode_key(key: list[Any]) -> str:
    """Return a primary key in the format of the log: a JSON list."""
    return json.dumps(key)


def lock_head(connection: Connection) -> LogHead:
    """Return the head of the log, locked for other writers until this transaction ends."""
    return _load_head(connection, sa.select(log_head.c.lines, log_head.c.digest).with_for_update())


def _find_line(connection: Connection, table: Table, key: str) -> Row[Any]:
    line = connection.execute(_select_line(table, key)).first()
    if line is None:
        raise _edited_error(f"{table.name} {key} has no line in the log.")
    return line


def _select_line(table: Table, key: str) -> sa.Select[Any]:
    return sa.select(log).where(log.c.entity == table.name, log.c.key == key)


def _edited_error(what: str) -> IntegrityError:
    return IntegrityError(
        what,
        cause="The registry's database was edited manually or damaged.",
        fix="Run sluice registry verify, and restore the database from a backup.",
    )


def _load_head(connection: Connection, query: sa.Select[tuple[int, str]]) -> LogHead:
    row = connection.execute(query).first()
    if row is None:
        raise _edited_error("The head of the registry's log is missing.")
    if not (isinstance(row.lines, int) and isinstance(row.digest, str)):
        raise _edited_error("The head of the registry's log cannot be read.")
    return LogHead(num_lines=row.lines, digest=row.digest)


def _append_lines(
    connection: Connection, head: LogHead, rows: Iterable[tuple[Table, Row[Any]]]
) -> str:
    """Append the log lines of rows; return the digest of the last line."""
    line_number, previous_digest, lines = head.num_lines, head.digest, []
    for table, row in rows:
        line_number += 1
        line = {
            "number": line_number,
            "entity": table.name,
            "key": encode_key(row_key(table, row)),
            "content": row_digest(row),
            "previous": previous_digest,
        }
        previous_digest = line_digest(**line)  # type: ignore[arg-type]
        lines.append(line | {"digest": previous_digest})
    if lines:
        connection.execute(sa.insert(log), lines)
        connection.execute(sa.update(log_head).values(lines=line_number, digest=previous_digest))
    return previous_digest


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    if isinstance(value, bytes):
        # SQLite stores bytes in any column. They become a list, which differs from every text.
        return [value.hex()]
    return value
