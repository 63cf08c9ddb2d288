"""Reads the rows of an SQL query in a read-only session (see ``sql_session``)."""

import contextlib
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SAWarning, SQLAlchemyError
from sqlalchemy.pool import NullPool

from sluice.base.errors import SourceError
from sluice.data.file_source import suggest_name
from sluice.data.raw_rows import apply_schema, row_location
from sluice.data.schema import Schema
from sluice.data.source_settings import SqlSource
from sluice.data.source_url import hide_secrets, resolve
from sluice.data.sql_session import open_read_only, run_query

_LINK = re.compile(r" \(Background on this .*\)$")
"""Matches the link that SQLAlchemy appends to its messages."""


def read_sql(source: SqlSource, schema: Schema, *, environ: Mapping[str, str]) -> pd.DataFrame:
    """Run the query and return its rows, in the order of the database.

    Args:
        source: Database and query.
        schema: Schema with the numeric columns and the type of the index.
        environ: Environment variables, which may occur in ``source.url``.

    Raises:
        SourceError: A variable is not set, the URL is invalid, its driver is not installed, the
            database cannot be reached, or the query fails (with the database's message), returns
            no rows, takes longer than ``source.timeout_s`` or returns more than
            ``source.max_bytes``; also see ``apply_schema``. Messages do not contain the values of
            environment variables.
    """
    url = _parse_url(source, environ)
    with _connect(source, url, environ) as connection:
        table = _run_query(source, connection, environ)
    if table.empty:
        raise SourceError(
            f"The query on {source.url} must return at least one row, but returns none.",
            cause="The table is empty, or no row matches the WHERE clause.",
            fix="Correct 'query', or fill the table.",
        )
    origin = f"The query on {source.url}"
    return apply_schema(table, source, schema, origin=origin, where=row_location)


def _parse_url(source: SqlSource, environ: Mapping[str, str]) -> URL:
    try:
        url = make_url(resolve(source.url, environ))
    except (ArgumentError, ValueError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(
            f"'url' must be an SQLAlchemy URL, got {source.url}.",
            cause="A part is missing, or the port is not a number.",
            fix="Write a URL such as sqlite:////data/bars.db or "
            "postgresql://user:${PASSWORD}@host/name.",
        ) from None
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    _require_file(source, url, environ)
    return url


def _require_file(source: SqlSource, url: URL, environ: Mapping[str, str]) -> None:
    """Raise an error for a missing SQLite file, which SQLite would create without tables."""
    name = url.database or ""
    if url.get_backend_name() != "sqlite" or name in ("", ":memory:") or name.startswith("file:"):
        return
    if not Path(name).is_file():
        suggestion = hide_secrets(suggest_name(name), source.url, environ)
        raise SourceError(
            f"There is no database file for {source.url}.{suggestion}",
            fix="Correct 'url': an absolute path has four slashes, as in sqlite:////data/bars.db.",
        )


@contextlib.contextmanager
def _connect(source: SqlSource, url: URL, environ: Mapping[str, str]) -> Iterator[Connection]:
    try:
        with warnings.catch_warnings():
            # For an unknown option of SQLite, SQLAlchemy only warns. Make the warning an error.
            warnings.simplefilter("error", SAWarning)
            engine = sa.create_engine(url, poolclass=NullPool)
        # For an unknown option, other drivers raise TypeError or ValueError.
        connection = open_read_only(engine, source)
    except (NoSuchModuleError, ImportError) as error:
        raise SourceError(
            f"'url' {source.url} needs the driver {url.drivername}, which is not installed "
            f"({error}).",
            cause="The package of the driver is missing, or its name is misspelled.",
            fix="Install it (for PostgreSQL: pip install 'psycopg[binary]'), or correct 'url'.",
        ) from None
    except SourceError:
        raise
    except (SQLAlchemyError, SAWarning, TypeError, ValueError) as error:
        raise SourceError(
            f"The database {source.url} cannot be reached: "
            f"{_database_message(source, error, environ)}.",
            cause="The server is down or has another address, rejects this user, or does not "
            "support an option of the url.",
            fix="Correct 'url' or its variables; test them with the database's own client.",
        ) from None
    try:
        # Closing the connection without a commit rolls the transaction back.
        with connection:
            yield connection
    finally:
        engine.dispose()


def _run_query(
    source: SqlSource, connection: Connection, environ: Mapping[str, str]
) -> pd.DataFrame:
    try:
        names, rows = run_query(connection, source)
    except SQLAlchemyError as error:
        raise SourceError(
            f"The query on {source.url} failed: {_database_message(source, error, environ)}.",
            cause="The query is not a single SELECT, is not valid SQL for this database, or would "
            "write. Or it names a table or column that is missing or that this user may not read.",
            fix="Correct 'query', and test it with the database's own client; write a colon before "
            "a word as '\\:'.",
        ) from None
    repeated_names = sorted({name for name in names if names.count(name) > 1})
    if repeated_names:
        raise SourceError(
            f"The query on {source.url} returns more than one column '{repeated_names[0]}'.",
            fix="Rename the columns with AS, or select only one of them.",
        )
    return pd.DataFrame(rows, columns=names)


def _database_message(source: SqlSource, error: Exception, environ: Mapping[str, str]) -> str:
    """Return the first line and the hint of the database's message, without secrets."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines() or [
        type(error).__name__
    ]
    message_lines = [
        _LINK.sub("", lines[0]),
        *(line.strip() for line in lines[1:] if line.startswith("HINT:")),
    ]
    message = hide_secrets(" ".join(message_lines), source.url, environ).rstrip(".")
    password = make_url(resolve(source.url, environ)).password
    return message.replace(str(password), "***") if password else message
