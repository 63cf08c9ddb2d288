"""A full disk is reported in one message, also when Dagster's own databases cannot grow."""

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


def forbid_growth(connection: Any, _record: object) -> None:
    """Allow writes to existing pages only; SQLite raises the limit to the current page count."""
    connection.execute("PRAGMA max_page_count = 1")


def record_runs(home: Home) -> None:
    """Record runs in databases that cannot grow, until one fails."""
    job = dg.GraphDefinition("any").to_job()
    with open_instance(home) as instance:
        instance.create_run_for_job(job)
        sa.event.listen(sa.Engine, "connect", forbid_growth)
        try:
            for _ in range(500):
                instance.create_run_for_job(job, tags={"why": "x" * 4000})
        finally:
            sa.event.remove(sa.Engine, "connect", forbid_growth)


def test_full_disk_is_reported_with_its_path_and_the_fix(tmp_path: Path) -> None:
    home = home_at(tmp_path / "home")
    with pytest.raises(StorageError) as caught:
        record_runs(home)

    assert f"No room left to write {home.dagster}" in caught.value.what
    assert "(database or disk is full, in Dagster's record of runs; " in caught.value.what
    assert "Free disk space" in caught.value.fix


def test_errors_of_other_databases_and_other_kinds_are_not_converted(tmp_path: Path) -> None:
    home = home_at(tmp_path / "home")
    other = sa.create_engine(f"sqlite:///{tmp_path / 'rows.db'}", poolclass=sa.NullPool)
    sa.event.listen(other, "connect", forbid_growth)
    with open_instance(home) as instance:
        with pytest.raises(sa.exc.OperationalError, match="disk is full"), other.begin() as rows:
            rows.execute(sa.text("CREATE TABLE one (a TEXT)"))
        own = sa.create_engine(
            f"sqlite:///{home.dagster / 'history' / 'runs.db'}", poolclass=sa.NullPool
        )
        with pytest.raises(sa.exc.OperationalError, match="no such table"), own.begin() as rows:
            rows.execute(sa.text("SELECT * FROM nowhere"))
        assert instance.get_runs_count() == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("kib", [1600, 1200])
def test_full_disk_during_a_run_is_reported_in_one_message(tmp_path: Path, kib: int) -> None:
    """The whole state folder is on the small disk: Dagster's records, trainings and traces."""
    with small_disk(tmp_path / "disk", kib=kib) as disk:
        done = subprocess.run(
            [sys.executable, "-m", "sluice", "run", "--no-rehearsal", str(ECHO)],
            cwd=ROOT,
            env=os.environ | {"SLUICE_HOME": str(disk / "home")},
            capture_output=True,
            text=True,
            check=False,
        )
        temporary_files = [p for p in disk.rglob("*") if p.name.startswith(".") and p.is_file()]

    output = done.stdout + done.stderr
    assert done.returncode == 2, output
    assert output.count("No room left to write") == 1
    assert "bytes are free on its disk" in output
    assert "traces/ and reports/ can be deleted" in " ".join(output.split())
    for noise in ("Exception while", "Errno 28", "Traceback", "tracing stopped"):
        assert noise not in output
    assert not temporary_files
