"""Runs one query in a read-only database session.

- PostgreSQL: the transaction is READ ONLY, and the query is the body of a DECLARE CURSOR that is
  sent by the extended protocol. Therefore the server rejects a second statement, and every
  statement that is not a query, such as COPY, CALL and a DELETE with RETURNING.
- SQLite: the file is opened with mode=ro, and an authorizer allows only reads and functions. So
  ATTACH, PRAGMA and VACUUM INTO are rejected.
- Other databases: the transaction is rolled back, but writing is not prevented. The database user
  must not have write privileges.

Functions that a query calls run with the privileges of the database user, see ``READER_GRANTS``.
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
"""Statements that create a read-only PostgreSQL role.

A read-only transaction does not prevent functions with side effects outside of the transaction:
pg_read_file, lo_export, dblink, pg_terminate_backend and functions in untrusted languages. This
role cannot call functions that require a privilege.
"""

DRIVERS = {"postgresql": "psycopg", "sqlite": "pysqlite"}
"""Drivers whose sessions can be made read-only, by database."""

_MAX_FETCH_ROWS = 10_000
"""Maximum number of rows that are fetched at a time."""
_SQLITE_STEPS = 10_000
"""Number of SQLite instructions between two checks of the deadline (less than 1 ms)."""

_SQLITE_READ_ACTIONS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_RECURSIVE,
    sqlite3.SQLITE_FUNCTION,
}
_SQLITE_CODE_LOADERS = {"load_extension", "fts3_tokenizer"}
"""SQLite functions that are rejected, because they load code."""


def open_read_only(engine: Engine, source: SqlSource) -> Connection:
    """Connect to the database; SQLite opens its file in read-only mode.

    Raises:
        SourceError: Sessions of the driver cannot be made read-only.
        SQLAlchemyError: The database cannot be reached.
    """
    required_driver = DRIVERS.get(engine.dialect.name)
    if engine.driver != (required_driver or engine.driver) or engine.dialect.is_async:
        raise SourceError(
            f"'url' {source.url} must be read with "
            f"{f'the driver {required_driver}' if required_driver else 'a synchronous driver'}, "
            f"got {engine.url.get_driver_name()}.",
            cause="With other drivers a query could consist of several statements, and so could "
            "write."
            if required_driver
            else "The rows are read without asyncio.",
            fix=f"Write {engine.dialect.name}:// without a driver in 'url'.",
        )
    if engine.dialect.name == "sqlite":
        event.listen(engine, "do_connect", _open_for_reading)
    return engine.connect()


def run_query(connection: Connection, source: SqlSource) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return column names and rows of the source's query, run in the read-only session.

    Raises:
        SourceError: The statement is not a query, takes longer than ``timeout_s``, or its rows are
            larger than ``max_bytes``.
        SQLAlchemyError: The database rejects the query.
    """
    deadline = time.monotonic() + source.timeout_s
    statement = sa.text(source.query)
    try:
        match connection.dialect.name:
            case "postgresql":
                update_timeout = _restrict_postgresql(connection, deadline)
                update_timeout()
                result = connection.execute(statement, execution_options={"stream_results": True})
            case "sqlite":
                update_timeout = _keep_timeout
                _restrict_sqlite(connection, source, deadline)
                result = connection.execute(statement)
            case _:
                update_timeout = _keep_timeout
                result = connection.execute(statement)
        with contextlib.closing(result):
            if not result.returns_rows:
                raise SourceError(
                    f"The query on {source.url} must be a SELECT, got a statement without rows.",
                    cause="The statement writes. It was rolled back.",
                    fix="Write one SELECT.",
                )
            return list(result.keys()), _fetch(result, source, deadline, update_timeout)
    except SQLAlchemyError:
        if time.monotonic() >= deadline:
            raise _timeout_error(source) from None
        raise


def _fetch(
    result: sa.CursorResult[Any],
    source: SqlSource,
    deadline: float,
    update_timeout: Callable[[], None],
) -> list[tuple[Any, ...]]:
    """Fetch all rows in batches, whose size depends on the largest row so far."""
    rows: list[tuple[Any, ...]] = []
    num_bytes, max_row_bytes, batch_rows = 0, 1, 1
    while True:
        update_timeout()
        batch = result.fetchmany(batch_rows)
        if not batch:
            return rows
        for row in batch:
            row_bytes = sys.getsizeof(row) + sum(map(sys.getsizeof, row))
            max_row_bytes, num_bytes = max(max_row_bytes, row_bytes), num_bytes + row_bytes
            rows.append(tuple(row))
        if num_bytes > source.max_bytes:
            raise SourceError(
                f"The rows of the query on {source.url} must be at most max_bytes = "
                f"{source.max_bytes:,} bytes in memory, got more after {len(rows):,} rows.",
                cause="The query has no condition, or joins every row with every other row.",
                fix="Narrow the query, or raise 'max_bytes' in the source's settings.",
            )
        if time.monotonic() >= deadline:
            raise _timeout_error(source)
        batch_rows = max(1, min(_MAX_FETCH_ROWS, source.max_bytes // 16 // max_row_bytes))


def _restrict_postgresql(connection: Connection, deadline: float) -> Callable[[], None]:
    """Begin a read-only transaction; return a function that sets the remaining time limit."""
    connection.execution_options(postgresql_readonly=True)
    mode = connection.exec_driver_sql("SHOW transaction_read_only").scalar_one()
    if mode != "on":
        raise SourceError(
            f"A query must run in a read-only transaction, but the server reports '{mode}'.",
            cause="An option of 'url', such as autocommit, disables transactions.",
            fix="Remove the option from 'url'.",
        )

    def update_timeout() -> None:
        remaining_ms = max(1, math.ceil((deadline - time.monotonic()) * 1000))
        # ``timeout_s`` applies to all fetches together, so the remaining time is set before each
        # fetch. This also overrides a setting that the query itself has changed.
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {remaining_ms}")

    return update_timeout


def _restrict_sqlite(connection: Connection, source: SqlSource, deadline: float) -> None:
    driver: Any = connection.connection.driver_connection
    connection.exec_driver_sql("PRAGMA query_only = ON")
    driver.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(source.max_bytes, 10**9))
    driver.set_progress_handler(lambda: time.monotonic() >= deadline, _SQLITE_STEPS)
    driver.set_authorizer(_authorize)


def _authorize(
    action: int, _first: str | None, name: str | None, _database: str | None, _trigger: str | None
) -> int:
    loads_code = action == sqlite3.SQLITE_FUNCTION and str(name).lower() in _SQLITE_CODE_LOADERS
    is_allowed = action in _SQLITE_READ_ACTIONS and not loads_code
    return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY


def _open_for_reading(
    _dialect: Any, _record: Any, arguments: list[Any], options: dict[str, Any]
) -> None:
    """Change the arguments of sqlite3.connect to open the file in read-only mode."""
    name = str(arguments[0])
    if name in ("", ":memory:"):
        return
    uri = name.partition("#")[0] if name.startswith("file:") else f"file:{quote(name)}"
    arguments[0] = f"{uri}{'&' if '?' in uri else '?'}mode=ro"
    options["uri"] = True


def _timeout_error(source: SqlSource) -> SourceError:
    return SourceError(
        f"The query on {source.url} must end within timeout_s = {source.timeout_s:g} s, but did "
        "not.",
        cause="It reads or sorts too much data for this time, or waits for a lock.",
        fix="Narrow the query, add an index, or raise 'timeout_s' in the source's settings.",
    )


def _keep_timeout() -> None:
    """Do nothing, for databases whose connection has no statement timeout to update."""
