"""``sluice dev`` in a real browser: everything loads, and a failed check says why."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from sluice.home import Home
from sluice.pipeline import PipelineSettings
from sluice.pipelines.run import RunReport
from tests.pipelines.conftest import ECHO, ROLLOUT, STAGES, home_at
from tests.pipelines.test_line import materialize_alone

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
CHROMIUM = Path("/usr/bin/chromium")

QUERY = """{ workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError {
  __typename ... on PythonError { message }
  ... on RepositoryLocation { repositories {
    assetNodes { assetKey { path } } jobs { name } schedules { name } sensors { name } } }
} } } } }"""


@pytest.fixture(scope="module")
def ui(
    tmp_path_factory: pytest.TempPathFactory,
    _green: tuple[Path, RunReport],
    echo: PipelineSettings,
) -> Iterator[str]:
    """Serve a state folder that has seen a green run, and a gate that failed."""
    home = home_at(tmp_path_factory.mktemp("ui") / "home")
    subprocess.run(["cp", "-r", str(_green[0]), str(home.root)], check=True)
    bad = echo.training.model_copy(update={"learning_rate": 100.0})
    blocked = echo.model_copy(update={"training": bad})
    assert not materialize_alone(blocked, home, "poc_report", checks=True).success
    with serve(home) as (url, _):
        yield url


@contextmanager
def serve(home: Home) -> "Iterator[tuple[str, subprocess.Popen[bytes]]]":
    """Start it as a script does in the background, where SIGINT is ignored."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "sluice", "dev"]
    process = subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command, str(ECHO), "--port", str(port)],
        cwd=ROOT,
        env=os.environ | {"SLUICE_HOME": str(home.root)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while not answers(url):
            assert process.poll() is None, "sluice dev ended by itself"
            assert time.monotonic() < deadline, "the UI did not come up"
            time.sleep(0.2)
        yield url, process
    finally:
        with suppress(ProcessLookupError):  # it ended, and its children with it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/server_info", timeout=2) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def test_in_the_background_of_a_script_it_ends_when_told_to(home: Home) -> None:
    with serve(home) as (url, process):
        process.terminate()
        process.wait(timeout=60)

        assert not answers(url)


def test_ui_loads_every_asset_job_schedule_and_sensor(ui: str) -> None:
    request = urllib.request.Request(
        f"{ui}/graphql",
        json.dumps({"query": QUERY}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        entries = json.load(reply)["data"]["workspaceOrError"]["locationEntries"]
    (location,) = [entry["locationOrLoadError"] for entry in entries]
    assert location["__typename"] == "RepositoryLocation", location
    (repository,) = location["repositories"]

    for name, stages in {"sp500_volatility": STAGES | ROLLOUT, "echo": STAGES}.items():
        paths = [asset["assetKey"]["path"] for asset in repository["assetNodes"]]
        assert {path[1] for path in paths if path[0] == name} == stages
        assert {f"{name}_training", f"{name}_promotion"} <= {j["name"] for j in repository["jobs"]}
        assert f"{name}_retrain_schedule" in {s["name"] for s in repository["schedules"]}
        assert f"{name}_promotion_sensor" in {s["name"] for s in repository["sensors"]}


@pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium at /usr/bin/chromium")
def test_page_of_a_failed_check_says_what_and_what_to_do(ui: str) -> None:
    sync = pytest.importorskip("playwright.sync_api")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.goto(f"{ui}/assets/echo/poc_report?view=checks", wait_until="domcontentloaded")
        page.get_by_text("poc_5_mini_training_learns").first.wait_for(timeout=60_000)
        page.goto(
            f"{ui}/assets/echo/poc_report?view=checks&checkDetail=poc_5_mini_training_learns",
            wait_until="domcontentloaded",
        )
        page.get_by_text("Lower learning_rate").first.wait_for(timeout=60_000)
        text = page.inner_text("body")
        browser.close()

    assert "poc_5_mini_training_learns" in text
    assert "Training threw the weights far away" in text
