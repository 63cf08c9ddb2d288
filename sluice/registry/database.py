"""Opening the ledger's database, and its two kinds of transaction: read and write.

SQLite (WAL mode) is the embedded default; any other SQLAlchemy URL works the same. A transaction
that a process dies in leaves nothing behind: both databases roll it back.
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
"""How long a writer waits for another one before it gives up."""


class Database:
    """One ledger database. Connections live for one transaction only, so forks share none."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.url = redact(engine.url.render_as_string(hide_password=True))

    @classmethod
    def open(cls, url: str, *, create: bool) -> "Database":
        """Connect; make the tables when there are none, and bring older ones up to date.

        Args:
            url: Any SQLAlchemy URL of a database that several processes can see.
            create: False refuses a database without tables instead of making them.

        Raises:
            SettingsError: The URL is not one, or its driver is not installed.
            StorageError: Unreachable, read-only, no database, or of a newer schema version.
            UnknownVersion: ``create`` is False and there is no registry.
        """
        parsed = _parse(url)
        if parsed.get_backend_name() == "sqlite":
            _prepare_folder(parsed, create=create)
        try:
            engine = sa.create_engine(parsed, poolclass=NullPool)
        except (NoSuchModuleError, ModuleNotFoundError) as error:
            raise SettingsError(
                f"The registry URL asks for the driver {parsed.drivername}, and it is not "
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
        """Yield a connection that sees one state of the ledger throughout."""
        # READ COMMITTED would let a promotion slip in between two statements.
        options = {} if self._is_sqlite else {"isolation_level": "REPEATABLE READ"}
        with self._explained("read"), self._engine.connect() as plain:
            connection = plain.execution_options(**options)
            with connection.begin():
                yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """Yield a connection whose changes are all kept when the block ends, or none."""
        with self._explained("write"), self._engine.connect() as plain:
            connection = plain.execution_options(sluice_writer=True)
            with connection.begin():
                yield connection

    def close(self) -> None:
        """Let go of the engine."""
        self._engine.dispose()

    @property
    def _is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    def _ensure_schema(self, *, create: bool) -> None:
        with self.read() as connection:
            found = migrations.schema_version(connection)
        if found is None and not create:
            raise _no_registry(self.url)
        if migrations.can_update(found):
            with self.write() as connection:
                found = migrations.bring_up_to_date(connection)
        if found != tables.SCHEMA_VERSION:
            raise StorageError(
                f"The registry {self.url} has schema version {found}, and this Sluice reads "
                f"{tables.SCHEMA_VERSION}.",
                cause="It was made by a newer version of Sluice.",
                fix="Use the Sluice that made it, or point SLUICE_REGISTRY_URL elsewhere.",
            )

    @contextlib.contextmanager
    def _explained(self, purpose: str) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise _storage_error(self.url, purpose, error) from error


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        # The text is not repeated: it may hold a password.
        raise SettingsError(
            "The registry URL is not an SQLAlchemy URL.",
            fix="Set SLUICE_REGISTRY_URL to one, for example sqlite:////data/registry.db or "
            "postgresql://user@host/name.",
        ) from None
    if parsed.drivername in ("postgres", "postgresql"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise SettingsError(
            "The registry URL names an in-memory database, and the ledger must outlive a process.",
            fix="Name a file: sqlite:////data/registry.db",
        )
    return parsed


def _prepare_folder(url: URL, *, create: bool) -> None:
    name = str(url.database)
    if name.startswith("file:"):
        return
    path = Path(name)
    if not create and not path.exists():
        raise _no_registry(url.render_as_string())
    try:
        make_folder(path.parent)
    except OSError as error:
        raise StorageError(
            f"The registry's folder {path.parent} cannot be made ({error.strerror}).",
            fix="Make the place writable, or point SLUICE_HOME at one that is.",
        ) from error


def _configure_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    # We send BEGIN ourselves (_begin_sqlite); the driver would send it too late.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA journal_mode = WAL")


def _begin_sqlite(connection: Connection) -> None:
    # A deferred transaction that turns into a writer can fail without waiting; IMMEDIATE waits.
    is_writer = connection.get_execution_options().get("sluice_writer", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")


def _no_registry(url: str) -> UnknownVersion:
    return UnknownVersion(
        f"There is no registry at {url}.",
        fix="Run the pipeline first ('sluice run NAME_OR_FILE'), or point SLUICE_HOME at the "
        "folder that has one.",
    )


def _storage_error(url: str, purpose: str, error: Exception) -> StorageError:
    seen = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
    what = f"Cannot {purpose} the registry {url} ({seen})."
    if "readonly" in seen or "read-only" in seen:
        fix = "Make the file and its folder writable, or point SLUICE_HOME at a place that is."
    elif "locked" in seen:
        fix = (
            f"Another process has been writing for over {BUSY_TIMEOUT_S:.0f} s: let it finish, "
            "then repeat the command."
        )
    elif "full" in seen or "disk I/O error" in seen:  # the second: of a file beside the database
        fix = "Free disk space, then repeat the command: nothing was half-written."
    elif "not a database" in seen or "malformed" in seen:
        fix = "Restore the file from a backup, or point SLUICE_REGISTRY_URL at a registry."
    elif "append-only" in seen:
        fix = "Leave the record as it is; register or promote a new version instead."
    else:
        fix = "Check that the place exists, can be written, and that its server runs."
    return StorageError(what, fix=fix)
