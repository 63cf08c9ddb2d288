"""Opens the registry's database and provides read and write transactions.

The default is SQLite in WAL mode. The URL of a PostgreSQL database selects PostgreSQL. If a process
ends during a transaction, the database rolls the transaction back.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from sluice.base.errors import SettingsError, StorageError, UnknownVersion
from sluice.base.files import make_folder
from sluice.base.redaction import redact
from sluice.registry import migrations, tables

BUSY_TIMEOUT_S = 30.0
"""Maximum time that a writer of an SQLite registry waits for another writer [s]."""


class Database:
    """Database of the registry.

    A connection lives for one transaction only, so forked processes never share one.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.url = redact(engine.url.render_as_string(hide_password=True))

    @classmethod
    def open(cls, url: str, *, create: bool) -> "Database":
        """Connect to a database, and create the tables or migrate an older schema.

        Args:
            url: SQLAlchemy URL of an SQLite file or of a PostgreSQL database.
            create: Whether to create missing tables. If False, missing tables raise an error.

        Raises:
            SettingsError: The URL is invalid or of another kind of database, or its driver is not
                installed.
            StorageError: The database is unreachable, read-only or invalid, or has a newer schema.
            UnknownVersion: ``create`` is False, and the database contains no registry.
        """
        parsed_url = _parse_url(url)
        if parsed_url.get_backend_name() == "sqlite":
            _prepare_folder(parsed_url, create=create)
        try:
            engine = sa.create_engine(parsed_url, poolclass=NullPool)
        except (NoSuchModuleError, ModuleNotFoundError) as error:
            raise SettingsError(
                f"The registry URL requires the driver {parsed_url.drivername}, which is not "
                f"installed ({error}).",
                fix="Install it (for PostgreSQL: pip install 'psycopg[binary]').",
            ) from error
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", _configure_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
        database = cls(engine)
        database._ensure_schema(create=create)
        return database

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """Yield a connection with a consistent snapshot of the registry."""
        # PostgreSQL needs REPEATABLE READ. With its default, READ COMMITTED, two statements of a
        # transaction could see different states, for example before and after a promotion.
        options = {} if self._is_sqlite else {"isolation_level": "REPEATABLE READ"}
        with self._convert_errors("read"), self._engine.connect() as base_connection:
            connection = base_connection.execution_options(**options)
            with connection.begin():
                yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """Yield the connection of a transaction, which is committed if the block succeeds."""
        with self._convert_errors("write"), self._engine.connect() as base_connection:
            connection = base_connection.execution_options(sluice_writer=True)
            with connection.begin():
                yield connection

    def close(self) -> None:
        """Close the engine."""
        self._engine.dispose()

    @property
    def _is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    def _ensure_schema(self, *, create: bool) -> None:
        with self.read() as connection:
            version = migrations.schema_version(connection)
        if version is None and not create:
            raise _no_registry_error(self.url)
        if migrations.can_migrate(version):
            with self.write() as connection:
                version = migrations.create_or_migrate(connection)
        if version != tables.SCHEMA_VERSION:
            cause = "The registry was created by a newer version of Sluice."
            fix = "Use the newer version, or set SLUICE_REGISTRY_URL to another registry."
            if not version:
                cause = f"The table {tables.schema_version.name} is damaged or not from Sluice."
                fix = "Restore it from a backup, or set SLUICE_REGISTRY_URL to another database."
            raise StorageError(
                f"The registry {self.url} has schema version {version}, but this version of Sluice "
                f"supports {tables.SCHEMA_VERSION}.",
                cause=cause,
                fix=fix,
            )

    @contextlib.contextmanager
    def _convert_errors(self, operation: str) -> Iterator[None]:
        """Convert errors of the database to a StorageError that says what to do."""
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise _storage_error(self.url, operation, error) from error


def _parse_url(url: str) -> URL:
    try:
        parsed_url = make_url(url)
    except ArgumentError:
        # The message does not contain the URL, because the URL may contain a password.
        raise SettingsError(
            "The registry URL is not an SQLAlchemy URL.",
            fix="Set SLUICE_REGISTRY_URL, for example to sqlite:////data/registry.db or "
            "postgresql://user@host/name.",
        ) from None
    if parsed_url.drivername in ("postgres", "postgresql"):
        parsed_url = parsed_url.set(drivername="postgresql+psycopg")
    if parsed_url.get_backend_name() not in ("sqlite", "postgresql"):
        raise SettingsError(
            "The registry must be an SQLite or PostgreSQL database, but its URL begins with "
            f"{parsed_url.get_backend_name()!r}.",
            fix="Set SLUICE_REGISTRY_URL, for example to sqlite:////data/registry.db or "
            "postgresql://user@host/name.",
        )
    if parsed_url.get_backend_name() == "sqlite" and parsed_url.database in (None, "", ":memory:"):
        raise SettingsError(
            "The registry URL names an in-memory database, but the registry must be persistent.",
            fix="Use a file: sqlite:////data/registry.db",
        )
    return parsed_url


def _prepare_folder(url: URL, *, create: bool) -> None:
    name = str(url.database)
    if name.startswith("file:"):
        return
    path = Path(name)
    if not create and not path.exists():
        raise _no_registry_error(url.render_as_string())
    try:
        make_folder(path.parent)
    except OSError as error:
        raise StorageError(
            f"The registry's folder {path.parent} cannot be created ({error.strerror}).",
            fix="Make the parent folder writable, or point SLUICE_HOME at a writable folder.",
        ) from error


def _configure_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    # With isolation_level None, the driver sends no BEGIN. The driver would send it too late, so
    # _begin_sqlite sends BEGIN instead.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA journal_mode = WAL")


def _begin_sqlite(connection: Connection) -> None:
    # A writer sends BEGIN IMMEDIATE, which waits for other writers. After BEGIN alone, the first
    # write could fail without waiting if another process writes.
    is_writer = connection.get_execution_options().get("sluice_writer", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")


def _no_registry_error(url: str) -> UnknownVersion:
    return UnknownVersion(
        f"There is no registry at {url}.",
        fix="Run the pipeline first ('sluice run NAME_OR_FILE'), or point SLUICE_HOME at the "
        "folder with the registry.",
    )


def _storage_error(url: str, operation: str, error: Exception) -> StorageError:
    message = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
    what = f"Cannot {operation} the registry {url} ({message})."
    if "readonly" in message or "read-only" in message:
        fix = "Make the file and its folder writable, or point SLUICE_HOME at a writable folder."
    elif "locked" in message:
        fix = (
            f"Another process has been writing for over {BUSY_TIMEOUT_S:.0f} s. Wait until it "
            "finishes, then repeat the command."
        )
    # SQLite may report a full disk as an I/O error, for example when it extends the WAL file.
    elif "full" in message or "disk I/O error" in message:
        fix = "Free disk space, then repeat the command. No partial change was written."
    elif "not a database" in message or "malformed" in message:
        fix = "Restore the file from a backup, or point SLUICE_REGISTRY_URL at a registry."
    elif "append-only" in message:
        fix = "Do not change the record; register or promote a new version instead."
    else:
        fix = "Check that the database exists and is writable, and that its server is running."
    return StorageError(what, fix=fix)
