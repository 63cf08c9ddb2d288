"""Fixtures of the registry tests: artifact store, PostgreSQL server, empty registry, ledger."""

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.registry.ledger import Ledger
from tests.sluice.registry.ledger_samples import Clock


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a PostgreSQL server that listens on a socket in a temporary folder."""
    pytest.importorskip("psycopg", reason="psycopg is not installed (extra: postgres)")
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = str(binaries[-1]) if binaries else shutil.which("initdb")
    if initdb is None:
        pytest.skip("no PostgreSQL server binaries are installed")
    user_command: list[str] = []
    if os.geteuid() == 0:  # the server refuses to run as root
        if shutil.which("runuser") is None:
            pytest.skip("PostgreSQL refuses root, and runuser is not installed")
        user_command = ["runuser", "-u", "postgres", "--"]
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("PostgreSQL refuses root, and there is no user 'postgres' to run it as")
    folder = Path(tempfile.mkdtemp(prefix="sluice-pg-"))  # tmp_path is too long for a socket
    if user_command:
        shutil.chown(folder, "postgres")
    data = folder / "data"
    control = str(Path(initdb).with_name("pg_ctl"))

    def run(*command: str) -> None:
        subprocess.run(
            [*user_command, *command],
            check=True,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )

    try:
        run(initdb, "-D", str(data), "-U", "sluice", "-A", "trust", "--no-sync", "-E", "UTF8")
        options = f"-k {folder} -c listen_addresses= -c fsync=off"
        run(control, "-D", str(data), "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql://sluice@/postgres?host={folder}"
        finally:
            run(control, "-D", str(data), "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty registry, in SQLite and in PostgreSQL if available."""
    return empty_registry(request, tmp_path)


def empty_registry(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty registry in the requested kind of database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'registry.db'}"
    import psycopg

    server = str(request.getfixturevalue("postgres_server"))
    name = f"r{uuid.uuid4().hex[:12]}"  # a database per test would take 300 files each
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{server}&options=-csearch_path%3D{name}"


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    with Ledger.open(url, clock=Clock()) as opened:
        yield opened
