"""Rows of an SQL query; nothing is ever written to the database (see ``sql_session``)."""

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
from sluice.data.file_source import neighbour
from sluice.data.raw_rows import row_place, shape_rows
from sluice.data.schema import Schema
from sluice.data.source_settings import SqlSource
from sluice.data.source_url import hide, resolve
from sluice.data.sql_session import open_read_only, run_query

_LINK = re.compile(r" \(Background on this .*\)$")
"""What SQLAlchemy puts behind its own messages."""


def read_sql(source: SqlSource, schema: Schema, *, environ: Mapping[str, str]) -> pd.DataFrame:
    """Run the query and return its rows, in the database's order.

    Args:
        source: The database and the query.
        schema: Which columns are numbers, and what the index is.
        environ: Values of the variables in ``source.url``.

    Raises:
        SourceError: A variable is not set, the URL is none, its driver is not installed, the
            database cannot be reached, the query fails (with the database's own words), returns
            no rows, takes longer than ``source.timeout_s`` or returns more than
            ``source.max_bytes``; or see ``shape_rows``. No message holds a variable's value.
    """
    url = _parse(source, environ)
    with _connected(source, url, environ) as connection:
        table = _run(source, connection, environ)
    if table.empty:
        raise SourceError(
            f"The query on {source.url} must return at least one row, and returns none.",
            cause="The table is empty, or its WHERE leaves nothing.",
            fix="Correct 'query', or fill the table.",
        )
    origin = f"The query on {source.url}"
    return shape_rows(table, source, schema, origin=origin, where=row_place)


def _parse(source: SqlSource, environ: Mapping[str, str]) -> URL:
    try:
        url = make_url(resolve(source.url, environ))
    except (ArgumentError, ValueError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(
            f"'url' must be an SQLAlchemy URL, got {source.url}.",
            cause="A part is missing, or a port is no number.",
            fix="Write one such as sqlite:////data/bars.db or "
            "postgresql://user:${PASSWORD}@host/name.",
        ) from None
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    _require_file(source, url)
    return url


def _require_file(source: SqlSource, url: URL) -> None:
    """SQLite makes the file that is not there, and then finds no table in it."""
    name = url.database or ""
    if url.get_backend_name() != "sqlite" or name in ("", ":memory:") or name.startswith("file:"):
        return
    if not Path(name).is_file():
        raise SourceError(
            f"There is no database file for {source.url}.{neighbour(name)}",
            fix="Correct 'url': an absolute path has four slashes, as in sqlite:////data/bars.db.",
        )


@contextlib.contextmanager
def _connected(source: SqlSource, url: URL, environ: Mapping[str, str]) -> Iterator[Connection]:
    try:
        with warnings.catch_warnings():
            # SQLite ignores an option that it does not know, and only warns.
            warnings.simplefilter("error", SAWarning)
            engine = sa.create_engine(url, poolclass=NullPool)
        # A driver says of an option that it does not know that it is a TypeError or a ValueError.
        connection = open_read_only(engine, source)
    except (NoSuchModuleError, ImportError) as error:
        raise SourceError(
            f"'url' {source.url} needs the driver {url.drivername}, and it is not installed "
            f"({error}).",
            cause="A driver is a package of its own, or its name is misspelt.",
            fix="Install it (for PostgreSQL: pip install 'psycopg[binary]'), or correct 'url'.",
        ) from None
    except SourceError:
        raise
    except (SQLAlchemyError, SAWarning, TypeError, ValueError) as error:
        raise SourceError(
            f"The database {source.url} cannot be reached: {_words(source, error, environ)}.",
            cause="Its server is down or elsewhere, or refuses this user, or does not know an "
            "option of the url.",
            fix="Correct 'url' or its variables; try them in the database's own client.",
        ) from None
    try:
        # Closing without a commit rolls back.
        with connection:
            yield connection
    finally:
        engine.dispose()


def _run(source: SqlSource, connection: Connection, environ: Mapping[str, str]) -> pd.DataFrame:
    try:
        names, rows = run_query(connection, source)
    except SQLAlchemyError as error:
        raise SourceError(
            f"The query on {source.url} failed: {_words(source, error, environ)}.",
            cause="It names a table or column that is not there or that this user may not read, "
            "is not SQL of this database, would write, or is not one SELECT.",
            fix="Correct 'query', and try it in the database's own client; a colon before a word "
            "is written '\\:'.",
        ) from None
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SourceError(
            f"The query on {source.url} returns more than one column '{repeated[0]}'.",
            fix="Name each with AS, or select one of them.",
        )
    return pd.DataFrame(rows, columns=names)


def _words(source: SqlSource, error: Exception, environ: Mapping[str, str]) -> str:
    """Return what the database itself says: first line and hint, without a secret."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines() or [
        type(error).__name__
    ]
    kept = [
        _LINK.sub("", lines[0]),
        *(line.strip() for line in lines[1:] if line.startswith("HINT:")),
    ]
    words = hide(" ".join(kept), source.url, environ).rstrip(".")
    password = make_url(resolve(source.url, environ)).password
    return words.replace(str(password), "***") if password else words
