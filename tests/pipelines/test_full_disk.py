"""A full disk under Dagster's own records is said like any other one."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa

from sluice.base.errors import StorageError
from sluice.base.home import Home
from sluice.pipelines.instance import open_instance
from tests.pipelines.conftest import ECHO
from tests.support.small_disk import small_disk

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def home_at(root: Path) -> Home:
    return Home(root=root, registry_url=f"sqlite:///{root / 'registry.db'}")


def no_room(connection: Any, _record: object) -> None:
    """Every page that is there may be written, and none may be added: SQLite sets no less."""
    connection.execute("PRAGMA max_page_count = 1")


def record_runs(home: Home) -> None:
    """Record run after run in databases that have no more room."""
    job = dg.GraphDefinition("any").to_job()
    with open_instance(home) as instance:
        instance.create_run_for_job(job)
        sa.event.listen(sa.Engine, "connect", no_room)
        try:
            for _ in range(500):
                instance.create_run_for_job(job, tags={"why": "x" * 4000})
        finally:
            sa.event.remove(sa.Engine, "connect", no_room)


def test_full_disk_is_said_with_the_place_and_what_to_do(tmp_path: Path) -> None:
    home = home_at(tmp_path / "home")
    with pytest.raises(StorageError) as said:
        record_runs(home)

    assert f"No room left to write {home.dagster}" in said.value.what
    assert "(database or disk is full, in Dagster's record of runs; " in said.value.what
    assert "Free disk space" in said.value.fix


def test_other_databases_and_other_errors_speak_for_themselves(tmp_path: Path) -> None:
    home = home_at(tmp_path / "home")
    other = sa.create_engine(f"sqlite:///{tmp_path / 'rows.db'}", poolclass=sa.NullPool)
    sa.event.listen(other, "connect", no_room)
    with open_instance(home) as instance:
        with pytest.raises(sa.exc.OperationalError, match="disk is full"), other.begin() as rows:
            rows.execute(sa.text("CREATE TABLE one (a TEXT)"))
        own = sa.create_engine(
            f"sqlite:///{home.dagster / 'history' / 'runs.db'}", poolclass=sa.NullPool
        )
        with pytest.raises(sa.exc.OperationalError, match="no such table"), own.begin() as rows:
            rows.execute(sa.text("SELECT * FROM nowhere"))
        assert instance.get_runs_count() == 0


@pytest.mark.parametrize("kib", [pytest.param(1600, marks=pytest.mark.exhaustive), 1200])
def test_a_full_disk_is_one_message(tmp_path: Path, kib: int) -> None:
    """The whole state folder is on it: Dagster's records, the trainings and their traces."""
    with small_disk(tmp_path / "disk", kib=kib) as disk:
        done = subprocess.run(
            [sys.executable, "-m", "sluice", "run", "--no-rehearsal", str(ECHO)],
            cwd=ROOT,
            env=os.environ | {"SLUICE_HOME": str(disk / "home")},
            capture_output=True,
            text=True,
            check=False,
        )
        torn = [p for p in disk.rglob("*") if p.name.startswith(".") and p.is_file()]

    told = done.stdout + done.stderr
    assert done.returncode == 2, told
    assert told.count("No room left to write") == 1
    assert "bytes are free on its disk" in told
    assert "traces/ and reports/ can be deleted" in " ".join(told.split())
    for noise in ("Exception while", "Errno 28", "Traceback", "tracing stopped"):
        assert noise not in told
    assert not torn
