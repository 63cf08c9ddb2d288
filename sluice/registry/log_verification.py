"""Verifies the log's hash chain, and that all rows or selected rows of the tables match the log."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row, Table

from sluice.base.digests import short
from sluice.base.errors import IntegrityError, RegistryInconsistent
from sluice.base.pluralize import pluralize
from sluice.registry.log import (
    EMPTY_DIGEST,
    encode_key,
    line_digest,
    load_head,
    row_digest,
    row_key,
    sql_key,
)
from sluice.registry.records import RegistryFinding
from sluice.registry.tables import LOGGED_TABLES, log

_FIX = "The database was edited manually or damaged: restore it from a backup."
_MAX_BATCH_SIZE = 500
"""Maximum number of values in one SQL IN list. SQLite before version 3.32 accepts at most 999
parameters in a query."""

RowSelection = tuple[Table, sa.ColumnElement[bool]]
"""A table, and a condition that selects some of its rows."""


def check(connection: Connection) -> Iterator[RegistryFinding]:
    """Yield every inconsistency between the log and the tables.

    Cost:
        Reads every row of the registry once.
    """
    lines = connection.execute(sa.select(log).order_by(log.c.number)).all()
    yield from _check_chain(connection, lines)
    unmatched_lines = {(line.entity, line.key): line for line in lines}
    for table in LOGGED_TABLES:
        yield from _check_table(connection, table, unmatched_lines)
    for entity, key in unmatched_lines:
        yield _finding(f"{entity} {key} is in the log, but the row is missing.")


def require_valid_log(connection: Connection) -> None:
    """Reject an inconsistent log.

    Raises:
        RegistryInconsistent: The message names the first finding.
    """
    _require_no_findings(check(connection))


def _require_no_findings(findings: Iterator[RegistryFinding]) -> None:
    first_finding = next(findings, None)
    if first_finding is not None:
        raise RegistryInconsistent(
            f"The log of the registry is inconsistent: {first_finding.what}",
            fix=f"{first_finding.fix} To list all findings: sluice registry verify",
        )


def check_rows(
    connection: Connection, selections: Sequence[RowSelection]
) -> Iterator[RegistryFinding]:
    """Yield every inconsistency of the selected rows, their log lines and the end of the log.

    Each log line must be linked with the lines before and after it. The check finds rows that were
    edited or added outside Sluice, with or without a log line. A completely rewritten chain is
    found neither by this function nor by ``check``, but only by signatures.

    Cost:
        Reads the selected rows and three log lines for each of them, and counts all lines.
    """
    rows = [
        (table, row)
        for table, condition in selections
        for row in connection.execute(_select_raw(table).where(condition))
    ]
    lines = _load_lines(connection, rows)
    for table, row in rows:
        line = lines.get((table.name, encode_key(row_key(table, row))))
        if line is None:
            yield _finding(f"{_row_name(table, row)} has no line in the log.", row)
        elif line.content != row_digest(row):
            yield _finding(
                f"{_row_name(table, row)} does not match line {line.number} of the log.", row
            )
    yield from _check_neighbours(connection, list(lines.values()))
    yield from _check_end(connection)


def check_removed_rows(connection: Connection) -> Iterator[RegistryFinding]:
    """Yield each row that is missing although it is in the log.

    Cost:
        Reads the key of every row. The database itself compares the keys of most tables.
    """
    for table in LOGGED_TABLES:
        select_logged_keys = sa.select(log.c.key).where(log.c.entity == table.name)
        key_text = sql_key(table)
        if key_text is None:
            rows: Iterable[Any] = connection.execute(sa.select(*table.primary_key))
            existing_keys = {encode_key(row_key(table, row)) for row in rows}
            missing_keys = set(connection.execute(select_logged_keys).scalars()) - existing_keys
        else:
            # EXCEPT is used, because NOT IN returns no row if a single key of the table is NULL.
            select_missing_keys = sa.except_(select_logged_keys, sa.select(key_text))
            missing_keys = set(connection.execute(select_missing_keys).scalars())
        for key in sorted(missing_keys):
            yield _finding(f"{table.name} {key} is in the log, but the row is missing.")


def require_valid_table(connection: Connection, table: Table) -> None:
    """Reject a table with a row that does not match the log.

    Raises:
        RegistryInconsistent: The message names the first finding.
    """
    lines = connection.execute(sa.select(log).where(log.c.entity == table.name))
    _require_no_findings(
        _check_table(connection, table, {(line.entity, line.key): line for line in lines})
    )


def _check_table(
    connection: Connection, table: Table, unmatched_lines: dict[tuple[str, str], Row[Any]]
) -> Iterator[RegistryFinding]:
    """Yield each row that does not match its log line.

    The line of each row is removed from ``unmatched_lines``, so the remaining lines belong to
    missing rows.
    """
    for row in connection.execute(_select_raw(table)):
        line = unmatched_lines.pop((table.name, encode_key(row_key(table, row))), None)
        if line is None:
            yield _finding(f"{_row_name(table, row)} has no line in the log.", row)
        elif line.content != row_digest(row):
            yield _finding(
                f"{_row_name(table, row)} does not match line {line.number} of the log.", row
            )


def _load_lines(
    connection: Connection, rows: Iterable[tuple[Table, Row[Any]]]
) -> dict[tuple[str, str], Row[Any]]:
    """Return the log lines of rows, by table name and encoded key."""
    keys_by_table: dict[str, list[str]] = {}
    for table, row in rows:
        keys_by_table.setdefault(table.name, []).append(encode_key(row_key(table, row)))
    return {
        (table_name, line.key): line
        for table_name, keys in keys_by_table.items()
        for key_batch in _batches(keys)
        for line in connection.execute(
            sa.select(log).where(log.c.entity == table_name, log.c.key.in_(key_batch))
        )
    }


def _check_neighbours(
    connection: Connection, lines: Sequence[Row[Any]]
) -> Iterator[RegistryFinding]:
    """Check that each line is linked with the line before and the line after it."""
    neighbour_numbers = {line.number + offset for line in lines for offset in (-1, 1)}
    neighbours = {
        line.number: line
        for number_batch in _batches(sorted(neighbour_numbers))
        for line in connection.execute(sa.select(log).where(log.c.number.in_(number_batch)))
    }
    for line in lines:
        if _line_digest(line) != line.digest:
            yield _finding(f"Line {line.number} of the log was changed.")
        line_before, line_after = neighbours.get(line.number - 1), neighbours.get(line.number + 1)
        if line.previous != (EMPTY_DIGEST if line_before is None else line_before.digest):
            yield _finding(f"Line {line.number} of the log does not follow line {line.number - 1}.")
        if line_after is not None and line_after.previous != line.digest:
            yield _finding(
                f"Line {line_after.number} of the log does not follow line {line.number}."
            )


def _check_end(connection: Connection) -> Iterator[RegistryFinding]:
    """Check that the stored head of the log matches the number of lines and the last line."""
    num_lines, last_number = connection.execute(
        sa.select(sa.func.count(), sa.func.max(log.c.number))
    ).one()
    select_digest = sa.select(log.c.digest).where(log.c.number == last_number)
    last_digest = connection.execute(select_digest).scalar() if num_lines else EMPTY_DIGEST
    try:
        head = load_head(connection)
    except IntegrityError as error:
        yield _finding(error.what)
        return
    # Lines are numbered from 1, so in a complete log the last number is the number of lines.
    if (head.num_lines, head.num_lines, head.digest) != (num_lines, last_number or 0, last_digest):
        yield _finding(
            f"The log has {pluralize(num_lines, 'line')} up to number {last_number or 0} and ends "
            f"with the digest {short(str(last_digest))}, but its head says "
            f"{pluralize(head.num_lines, 'line')} and {short(head.digest)}."
        )


def _batches(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(values), _MAX_BATCH_SIZE):
        yield values[start : start + _MAX_BATCH_SIZE]


def _select_raw(table: Table) -> sa.Select[Any]:
    """Select every row of a table; timestamps are read as text, because they may be damaged."""
    columns = [sa.type_coerce(c, getattr(c.type, "impl", c.type)).label(c.name) for c in table.c]
    return sa.select(*columns).order_by(*table.primary_key)


def _check_chain(connection: Connection, lines: Sequence[Row[Any]]) -> Iterator[RegistryFinding]:
    number, previous_digest = 0, EMPTY_DIGEST
    for line in lines:
        number += 1
        if line.number < number:
            yield _finding(f"Line {line.number} of the log has an invalid number.")
        elif line.number == number + 1:
            yield _finding(f"Line {number} is missing from the log.")
        elif line.number > number:
            yield _finding(f"Lines {number} to {line.number - 1} are missing from the log.")
        elif line.previous != previous_digest:
            yield _finding(f"Line {number} of the log does not follow line {number - 1}.")
        if _line_digest(line) != line.digest:
            yield _finding(f"Line {line.number} of the log was changed.")
        number, previous_digest = line.number, line.digest
    try:
        head = load_head(connection)
    except IntegrityError as error:
        yield _finding(error.what)
        return
    if (head.num_lines, head.digest) != (number, previous_digest):
        yield _finding(
            f"The log has {pluralize(number, 'line')} and ends with the digest "
            f"{short(previous_digest)}, but its head says {pluralize(head.num_lines, 'line')} "
            f"and {short(head.digest)}."
        )


def _line_digest(line: Row[Any]) -> str:
    return line_digest(
        number=line.number,
        entity=line.entity,
        key=line.key,
        content=line.content,
        previous=line.previous,
    )


def _row_name(table: Table, row: Row[Any]) -> str:
    return f"{table.name} {encode_key(row_key(table, row))}"


def _finding(what: str, row: Row[Any] | None = None) -> RegistryFinding:
    values = {} if row is None else row._mapping
    return RegistryFinding(
        model=str(values.get("model", "")), version=None, problem="log", what=what, fix=_FIX
    )
