"""Opening, reading and writing the registry's database, with messages of rejected databases."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import SettingsError, StorageError, UnknownVersion
from sluice.registry.database import Database
from sluice.registry.ledger import Ledger
from sluice.registry.tables import SCHEMA_VERSION, models, version_receipts
from tests.sluice.registry.ledger_samples import MODEL, Clock, promote_chain, sample_lineage
from tests.support.sqlite_files import sqlite_file


def test_open_creates_parent_folders(tmp_path: Path) -> None:
    Database.open(f"sqlite:///{tmp_path / 'a' / 'b' / 'registry.db'}", create=True).close()

    assert (tmp_path / "a" / "b" / "registry.db").is_file()


def test_open_without_create_reports_a_missing_registry_and_creates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new" / "registry.db"

    with pytest.raises(UnknownVersion, match=r"no registry at sqlite:.*sluice run"):
        Database.open(f"sqlite:///{path}", create=False)

    assert not path.parent.exists()


@pytest.mark.parametrize("url", ["not a url", "sqlite://", "sqlite:///:memory:"])
def test_unusable_url_is_rejected(url: str) -> None:
    with pytest.raises(SettingsError, match="registry URL"):
        Database.open(url, create=True)


def test_missing_driver_is_reported_with_install_command() -> None:
    with pytest.raises(SettingsError, match=r"pg8000.*not installed.*pip install"):
        Database.open("postgresql+pg8000://u@h/x", create=True)


def test_database_other_than_sqlite_and_postgresql_is_rejected() -> None:
    """The checks of triggers and tables exist for SQLite and PostgreSQL only."""
    with pytest.raises(
        SettingsError, match="SQLite or PostgreSQL database, but its URL begins with 'oracle'"
    ):
        Database.open("oracle+cx_oracle://u:s3cret@h/x", create=True)


def test_error_about_unreachable_server_hides_the_password() -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed (extra: postgres)")

    with pytest.raises(StorageError, match=r"ada:\*\*\*@localhost:1.*server is running") as error:
        Database.open("postgresql://ada:s3cret@localhost:1/x?connect_timeout=2", create=True)

    assert "s3cret" not in str(error.value)


def test_read_only_registry_can_be_read_but_not_changed(
    tmp_path: Path, store: ArtifactStore
) -> None:
    path = tmp_path / "registry.db"
    with Ledger.open(f"sqlite:///{path}", clock=Clock()) as ledger:
        promote_chain(ledger, store, 2)
    read_only_url = f"sqlite:///file:{path}?mode=ro&uri=true"

    with Ledger.open(read_only_url, clock=Clock(), create=False) as ledger:
        assert ledger.production_number(MODEL) == 2
        for attempt in (
            lambda: ledger.register(MODEL, sample_lineage(store, salt=9), []),
            lambda: ledger.rollback(MODEL, expected=2, actor="a", reason="r", store=store),
        ):
            with pytest.raises(StorageError, match=r"readonly.*Make the file and its folder"):
                attempt()


def test_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match=r"folder .*file/deep cannot be created"):
        Database.open(f"sqlite:///{tmp_path / 'file' / 'deep' / 'registry.db'}", create=True)


def test_file_that_is_not_a_database_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    path.write_bytes(b"some text, and more of it than a header has" * 20)

    with pytest.raises(StorageError, match="not a database"):
        Database.open(f"sqlite:///{path}", create=True)


@pytest.mark.parametrize("number", [0, SCHEMA_VERSION + 1])
def test_unsupported_schema_version_is_rejected(tmp_path: Path, number: int) -> None:
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    Database.open(url, create=True).close()
    with sqlite_file(tmp_path / "registry.db") as connection:
        connection.execute("UPDATE sluice_schema_version SET number = ?", (number,))
    connection.close()

    with pytest.raises(
        StorageError,
        match=f"has schema version {number}, but this version of Sluice supports {SCHEMA_VERSION}",
    ):
        Database.open(url, create=True)


def test_foreign_table_of_the_same_name_is_rejected(tmp_path: Path) -> None:
    with sqlite_file(tmp_path / "registry.db") as connection:
        connection.execute("CREATE TABLE sluice_schema_version (other TEXT)")
    connection.close()

    with pytest.raises(StorageError, match="has schema version 0"):
        Database.open(f"sqlite:///{tmp_path / 'registry.db'}", create=True)


def test_lock_held_by_another_process_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.registry.database.BUSY_TIMEOUT_S", 0.1)
    path = tmp_path / "registry.db"
    with Ledger.open(f"sqlite:///{path}", clock=Clock()) as ledger:
        other = sqlite3.connect(path, isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StorageError, match=r"locked.*Another process"):
                ledger.register(MODEL, sample_lineage(ArtifactStore(tmp_path)), [])
        finally:
            other.close()


def test_failed_write_is_rolled_back(url: str) -> None:
    database = Database.open(url, create=True)

    def add_and_break() -> None:
        with database.write() as connection:
            connection.execute(sa.insert(models).values(name="x", created_at=Clock()()))
            raise KeyError

    with pytest.raises(KeyError):
        add_and_break()
    with database.read() as connection:
        assert connection.execute(sa.select(models.c.name)).all() == []
    database.close()


def test_row_that_references_a_missing_version_is_rejected(url: str) -> None:
    database = Database.open(url, create=True)
    values = {"model": "x", "number": 1, "receipt": "a" * 64, "linked_at": Clock()()}

    def add() -> None:
        with database.write() as connection:
            connection.execute(sa.insert(version_receipts).values(values))

    with pytest.raises(StorageError, match=r"(?i)foreign key"):
        add()
    database.close()


def test_reader_does_not_see_writes_after_its_start(url: str) -> None:
    database = Database.open(url, create=True)
    with database.read() as reader:
        assert reader.execute(sa.select(models.c.name)).all() == []
        with database.write() as writer:
            writer.execute(sa.insert(models).values(name="x", created_at=Clock()()))
        assert reader.execute(sa.select(models.c.name)).all() == []
    database.close()


@pytest.mark.slow
def test_ledger_and_cli_import_no_heavy_library() -> None:
    script = (
        "import sys, sluice.registry.ledger, sluice.cli.registry;"
        "print(*sorted({'torch', 'dagster', 'ray', 'wandb'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == []


def test_foreign_table_is_not_reported_as_a_newer_schema(tmp_path: Path) -> None:
    with sqlite_file(tmp_path / "registry.db") as connection:
        connection.execute("CREATE TABLE sluice_schema_version (other TEXT)")
    connection.close()

    with pytest.raises(StorageError) as refused:
        Database.open(f"sqlite:///{tmp_path / 'registry.db'}", create=True)
    assert refused.value.cause == ("The table sluice_schema_version is damaged or not from Sluice.")
