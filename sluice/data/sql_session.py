"""A database session that reads the rows of one statement and cannot write.

PostgreSQL: the transaction is READ ONLY, and the query is the body of a DECLARE CURSOR, sent by the
extended protocol. The server itself therefore refuses a second statement and everything that is no
query, such as COPY, CALL and a DELETE with RETURNING. SQLite: the file is opened with mode=ro, and
an authorizer allows reading and functions only, so no ATTACH, PRAGMA or VACUUM INTO. Another
database is only rolled back: its user must not be able to write.

A function that a query calls runs with the rights of the database user: see ``READER_GRANTS``.
"""

import contextlib
import math
import sqlite3
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import SQLAlchemyError

from sluice.base.errors import SourceError
from sluice.data.source_settings import SqlSource

READER_GRANTS = """\
CREATE ROLE {role} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;
ALTER ROLE {role} SET default_transaction_read_only = on;
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role};
"""
"""Statements that make a PostgreSQL role for reading.

A read-only transaction does not stop functions with effects outside of it: pg_read_file,
lo_export, dblink, pg_terminate_backend and functions in untrusted languages. This role may call
none that needs a privilege.
"""

DRIVERS = {"postgresql": "psycopg", "sqlite": "pysqlite"}
"""Drivers whose sessions can be restricted, by database."""

_MAX_ROWS_A_FETCH = 10_000
_SQLITE_STEPS = 10_000
"""Instructions of SQLite between two looks at the clock, below 1 ms."""

_SQLITE_READS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_RECURSIVE,
    sqlite3.SQLITE_FUNCTION,
}
_SQLITE_CODE = {"load_extension", "fts3_tokenizer"}
"""Functions of SQLite that load code."""


def open_read_only(engine: Engine, source: SqlSource) -> Connection:
    """Connect, so that SQLite opens its file for reading only.

    Raises:
        SourceError: Sessions of the driver cannot be restricted.
        SQLAlchemyError: The database cannot be reached.
    """
    required = DRIVERS.get(engine.dialect.name, engine.driver)
    if engine.driver != required or engine.dialect.is_async:
        raise SourceError(
            f"'url' {source.url} must be read with the driver {required}, got "
            f"{engine.url.get_driver_name()}.",
            cause="A session of another driver can send several statements, and so could write.",
            fix=f"Write {engine.dialect.name}:// without a driver in 'url'.",
        )
    if engine.dialect.name == "sqlite":
        event.listen(engine, "do_connect", _open_for_reading)
    return engine.connect()


def run_query(connection: Connection, source: SqlSource) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return names and rows of the source's query, which the database runs as one read.

    Raises:
        SourceError: It returns no rows by its kind, takes longer than ``timeout_s``, or its
            rows are larger than ``max_bytes``.
        SQLAlchemyError: The database refuses it.
    """
    deadline = time.monotonic() + source.timeout_s
    statement = sa.text(source.query)
    try:
        match connection.dialect.name:
            case "postgresql":
                renew = _restrict_postgresql(connection, deadline)
                renew()
                result = connection.execute(statement, execution_options={"stream_results": True})
            case "sqlite":
                renew = _nothing
                _restrict_sqlite(connection, source, deadline)
                result = connection.execute(statement)
            case _:
                renew = _nothing
                result = connection.execute(statement)
        with contextlib.closing(result):
            if not result.returns_rows:
                raise SourceError(
                    f"The query on {source.url} must return rows, and is no query.",
                    cause="It changes something; it was rolled back.",
                    fix="Write one SELECT.",
                )
            return list(result.keys()), _fetch(result, source, deadline, renew)
    except SQLAlchemyError:
        if time.monotonic() >= deadline:
            raise _too_slow(source) from None
        raise


def _fetch(
    result: sa.CursorResult[Any],
    source: SqlSource,
    deadline: float,
    renew: Callable[[], None],
) -> list[tuple[Any, ...]]:
    """Fetch every row, in parts that the largest row so far lets fit many times."""
    rows: list[tuple[Any, ...]] = []
    num_bytes, largest, num_rows = 0, 1, 1
    while True:
        renew()
        part = result.fetchmany(num_rows)
        if not part:
            return rows
        for row in part:
            size = sys.getsizeof(row) + sum(map(sys.getsizeof, row))
            largest, num_bytes = max(largest, size), num_bytes + size
            rows.append(tuple(row))
        if num_bytes > source.max_bytes:
            raise SourceError(
                f"The rows of the query on {source.url} must be at most max_bytes = "
                f"{source.max_bytes:,} bytes in memory, got more after {len(rows):,} rows.",
                cause="The query lacks a condition, or joins each row with each.",
                fix="Narrow the query, or raise 'max_bytes' in the source's settings.",
            )
        if time.monotonic() >= deadline:
            raise _too_slow(source)
        num_rows = max(1, min(_MAX_ROWS_A_FETCH, source.max_bytes // 16 // largest))


def _restrict_postgresql(connection: Connection, deadline: float) -> Callable[[], None]:
    """Begin a read-only transaction; return what sets the time that is left."""
    connection.execution_options(postgresql_readonly=True)
    mode = connection.exec_driver_sql("SHOW transaction_read_only").scalar_one()
    if mode != "on":
        raise SourceError(
            f"A query must run in a read-only transaction, and the server reports '{mode}'.",
            cause="An option of 'url', such as autocommit, switches transactions off.",
            fix="Remove the option from 'url'.",
        )

    def renew() -> None:
        left_ms = max(1, math.ceil((deadline - time.monotonic()) * 1000))
        # Before each fetch: the time is one for all of them, and a query can set it as well.
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {left_ms}")

    return renew


def _restrict_sqlite(connection: Connection, source: SqlSource, deadline: float) -> None:
    driver: Any = connection.connection.driver_connection
    connection.exec_driver_sql("PRAGMA query_only = ON")
    driver.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(source.max_bytes, 10**9))
    driver.set_progress_handler(lambda: time.monotonic() >= deadline, _SQLITE_STEPS)
    driver.set_authorizer(_authorize)


def _authorize(
    action: int, _first: str | None, name: str | None, _database: str | None, _trigger: str | None
) -> int:
    loads_code = action == sqlite3.SQLITE_FUNCTION and str(name).lower() in _SQLITE_CODE
    allowed = action in _SQLITE_READS and not loads_code
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _open_for_reading(
    _dialect: Any, _record: Any, arguments: list[Any], options: dict[str, Any]
) -> None:
    """Change the arguments of sqlite3.connect."""
    name = str(arguments[0])
    if name in ("", ":memory:"):
        return
    uri = name.partition("#")[0] if name.startswith("file:") else f"file:{quote(name)}"
    arguments[0] = f"{uri}{'&' if '?' in uri else '?'}mode=ro"
    options["uri"] = True


def _too_slow(source: SqlSource) -> SourceError:
    return SourceError(
        f"The query on {source.url} must end within timeout_s = {source.timeout_s:g} s, and did "
        "not.",
        cause="It reads or sorts more than the database can in this time, or waits for a lock.",
        fix="Narrow the query, add an index, or raise 'timeout_s' in the source's settings.",
    )


def _nothing() -> None:
    """Leave a database without a time limit for each statement as it is."""
