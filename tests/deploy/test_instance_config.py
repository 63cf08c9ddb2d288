"""deploy/dagster.yaml with a real PostgreSQL: webserver, daemon and a schedule."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240

CODE = """
import dagster as dg

@dg.asset
def rows() -> None: ...

job = dg.define_asset_job("load", [rows])

@dg.schedule(
    job=job, cron_schedule="* * * * *", default_status=dg.DefaultScheduleStatus.RUNNING
)
def every_minute():
    return dg.RunRequest()

defs = dg.Definitions(assets=[rows], jobs=[job], schedules=[every_minute])
"""

QUERY = """{ workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError {
  ... on PythonError { message }
  ... on RepositoryLocation { repositories { schedules { name scheduleState {
    ticks { status error { message } runs { id status } } } } } } } } } } }"""


@pytest.fixture
def database(postgres_server: str) -> str:
    """Return the URL of an empty database."""
    import psycopg

    name = f"dagster_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres_server.replace("/postgres?", f"/{name}?")


@pytest.fixture
def webserver(database: str, tmp_path: Path) -> Iterator[str]:
    """Start webserver and daemon with deploy/dagster.yaml; yield the address of the UI."""
    pytest.importorskip("dagster_postgres", reason="not installed (extra: postgres)")
    (tmp_path / "home").mkdir()
    shutil.copy(ROOT / "deploy" / "dagster.yaml", tmp_path / "home" / "dagster.yaml")
    (tmp_path / "location.py").write_text(CODE)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    name, _, folder = database.partition("@/")[2].partition("?host=")
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dagster", "dev", "-f", "location.py", "-p", str(port)],
            cwd=tmp_path,
            env=os.environ
            | {
                "DAGSTER_HOME": str(tmp_path / "home"),
                "SLUICE_DAGSTER_HOST": "",  # libpq uses PGHOST, the folder of a socket
                "PGHOST": folder,
                "SLUICE_DAGSTER_USER": "sluice",
                "SLUICE_DAGSTER_PASSWORD": "any",
                "SLUICE_DAGSTER_DATABASE": name,
            },
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def has_active_run(tick: dict[str, Any]) -> bool:
    return any(run["status"] not in ("SUCCESS", "FAILURE") for run in tick["runs"])


def list_ended_ticks(address: str) -> list[dict[str, Any]]:
    """Return the ticks of the schedule that ended; [] while the UI is starting."""
    request = urllib.request.Request(
        f"{address}/graphql",
        json.dumps({"query": QUERY}).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            entries = json.load(reply)["data"]["workspaceOrError"]["locationEntries"]
    except OSError:
        return []
    (location,) = [entry["locationOrLoadError"] for entry in entries] or [None]
    if not location:
        return []
    assert "message" not in location, location
    (schedule,) = location["repositories"][0]["schedules"]
    return [tick for tick in schedule["scheduleState"]["ticks"] if tick["status"] != "STARTED"]


@pytest.mark.exhaustive
def test_schedule_ticks_and_its_run_succeeds_with_deploy_config(
    webserver: str, database: str, tmp_path: Path
) -> None:
    import psycopg

    deadline = time.monotonic() + DEADLINE_S
    while not (ended := list_ended_ticks(webserver)) or has_active_run(ended[-1]):
        assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-4000:]
        time.sleep(0.5)
    first = ended[-1]

    assert (first["status"], first["error"]) == ("SUCCESS", None)
    (run,) = first["runs"]
    assert run["status"] == "SUCCESS"
    with psycopg.connect(database) as connection:
        stored = connection.execute(
            "SELECT dagster_event_type FROM event_logs WHERE run_id = %s", (run["id"],)
        ).fetchall()
        statuses = connection.execute("SELECT DISTINCT status FROM job_ticks").fetchall()
    assert {("ASSET_MATERIALIZATION",), ("PIPELINE_SUCCESS",)} <= set(stored)
    assert ("SUCCESS",) in statuses
