"""``sluice dev`` over HTTP and in a browser: it loads everything and refuses foreign requests."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from sluice.base.home import Home
from sluice.config.pipeline import PipelineSettings
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

RUNS = "{ runsOrError { ... on Runs { results { runId } } } }"
LAUNCH = """mutation launch($params: ExecutionParams!) {
  launchPipelineExecution(executionParams: $params) { __typename
  ... on RunConfigValidationInvalid { errors { message } } ... on PythonError { message } } }"""

FOLLOW = """subscription follow($run: ID!) { pipelineRunLogs(runId: $run) {
  ... on PipelineRunLogsSubscriptionSuccess { messages { ... on MessageEvent { runId } } } } }"""


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory,
    _green: tuple[Path, RunReport],
    echo: PipelineSettings,
) -> "Iterator[tuple[str, subprocess.Popen[bytes]]]":
    """Serve a state folder with one successful run and one failed POC gate."""
    home = home_at(tmp_path_factory.mktemp("ui") / "home")
    subprocess.run(["cp", "-r", str(_green[0]), str(home.root)], check=True)
    bad = echo.training.model_copy(update={"learning_rate": 100.0})
    blocked = echo.model_copy(update={"training": bad})
    assert not materialize_alone(blocked, home, "poc_report", checks=True).success
    with serve(home) as server:
        yield server


@pytest.fixture
def ui(served: "tuple[str, subprocess.Popen[bytes]]") -> str:
    """Return the URL of the UI."""
    return served[0]


@contextmanager
def serve(home: Home) -> "Iterator[tuple[str, subprocess.Popen[bytes]]]":
    """Start ``sluice dev`` as a background job of a script, where SIGINT is ignored."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "sluice", "dev", "sp500_volatility"]
    process = subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command, str(ECHO), "--port", str(port)],
        cwd=ROOT,
        env=os.environ | {"SLUICE_HOME": str(home.root), "A_SECRET": "hunter2"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while not is_up(url):
            assert process.poll() is None, "sluice dev ended by itself"
            assert time.monotonic() < deadline, "the UI did not come up"
            time.sleep(0.2)
        yield url, process
    finally:
        with suppress(ProcessLookupError):  # it and its children have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/server_info", timeout=2) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def query_graphql(
    url: str, query: str, variables: Mapping[str, object] | None = None, **headers: str
) -> dict[str, Any]:
    """Send a GraphQL query with the headers of the UI; return the data of the response."""
    request = urllib.request.Request(
        f"{url}/graphql",
        json.dumps({"query": query, "variables": variables or {}}).encode(),
        {"Content-Type": "application/json", "Origin": url, "Sec-Fetch-Site": "same-origin"}
        | headers,
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        response: dict[str, Any] = json.load(reply)["data"]
    return response


def launch_params(config: Mapping[str, object], job: str = "echo_promotion") -> dict[str, object]:
    selector = {
        "repositoryLocationName": "sluice.pipelines.definitions",
        "repositoryName": "__repository__",
        "pipelineName": job,
    }
    return {"params": {"selector": selector, "runConfigData": config, "mode": "default"}}


def test_ui_loads_every_asset_job_schedule_and_sensor(ui: str) -> None:
    entries = query_graphql(ui, QUERY)["workspaceOrError"]["locationEntries"]
    (location,) = [entry["locationOrLoadError"] for entry in entries]
    assert location["__typename"] == "RepositoryLocation", location
    (repository,) = location["repositories"]

    for name, stages in {"sp500_volatility": STAGES | ROLLOUT, "echo": STAGES}.items():
        paths = [asset["assetKey"]["path"] for asset in repository["assetNodes"]]
        assert {path[1] for path in paths if path[0] == name} == stages
        assert {f"{name}_training", f"{name}_promotion"} <= {j["name"] for j in repository["jobs"]}
        assert f"{name}_retrain_schedule" in {s["name"] for s in repository["schedules"]}
        assert f"{name}_promotion_sensor" in {s["name"] for s in repository["sensors"]}


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (
            {"resources": {"sluice_state": {"config": {"registry_url": "http://127.0.0.1:1"}}}},
            "set",
        ),
        ({"resources": {"sluice_state": {"config": {"root": {"env": "A_SECRET"}}}}}, "set"),
        ({"resources": {"sluice_records": {"config": {"root": {"env": "A_SECRET"}}}}}, "set"),
        ({"resources": {"io_manager": {"config": {"base_dir": {"env": "A_SECRET"}}}}}, "set"),
        ({"ops": {"echo__production_model": {"config": {"version": {"env": "A_SECRET"}}}}}, "Int"),
    ],
)
def test_launch_cannot_set_resources_or_read_the_environment(
    ui: str, config: dict[str, object], word: str
) -> None:
    version: dict[str, object] = {"echo__production_model": {"config": {"version": 1}}}
    config = {"ops": version} | config
    before = query_graphql(ui, RUNS)

    response = query_graphql(ui, LAUNCH, launch_params(config))["launchPipelineExecution"]

    assert response["__typename"] == "RunConfigValidationInvalid", response
    assert word in str(response)
    assert "hunter2" not in str(response)
    assert query_graphql(ui, RUNS) == before


def test_page_of_another_site_cannot_start_a_run(ui: str) -> None:
    config = {"ops": {"echo__production_model": {"config": {"version": 1}}}}
    body = json.dumps({"query": LAUNCH, "variables": launch_params(config)}).encode()
    variables = json.dumps(launch_params(config))
    inline = f"{ui}/graphql?{urlencode({'query': LAUNCH, 'variables': variables})}"
    kind = {"Content-Type": "application/json"}
    before = query_graphql(ui, RUNS)
    attacks = [
        (inline, None, {}),
        (inline, b"", {"Content-Type": "text/plain"}),
        (f"{ui}/graphql", body, kind | {"Origin": "http://evil.example"}),
        (f"{ui}/graphql", body, kind | {"Host": "evil.example"}),
        (f"{ui}/graphql", body, kind | {"Sec-Fetch-Site": "cross-site"}),
    ]
    for url, sent, headers in attacks:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(url, sent, headers), timeout=30)
        refused.value.close()
        assert refused.value.code in (403, 405, 415, 421)

    assert query_graphql(ui, RUNS) == before


def test_own_page_starts_a_run_and_follows_it(ui: str) -> None:
    config = {"ops": {"echo__production_model": {"config": {"version": 1}}}}
    response = query_graphql(ui, LAUNCH, launch_params(config))["launchPipelineExecution"]
    assert response["__typename"] == "LaunchRunSuccess", response
    run = query_graphql(ui, RUNS)["runsOrError"]["results"][0]["runId"]
    start = {"query": FOLLOW, "variables": {"run": run}}

    url = f"{ui.replace('http', 'ws')}/graphql"
    with connect(url, origin=Origin(ui), subprotocols=[Subprotocol("graphql-ws")]) as page:
        page.send(json.dumps({"type": "connection_init", "payload": {}}))
        assert json.loads(page.recv(timeout=30))["type"] == "connection_ack"
        page.send(json.dumps({"id": "1", "type": "start", "payload": start}))
        event = json.loads(page.recv(timeout=30))
    assert event["payload"]["data"]["pipelineRunLogs"]["messages"][0]["runId"] == run
    with pytest.raises(InvalidStatus), connect(url, origin=Origin("http://evil.example")):
        pass


@pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium at /usr/bin/chromium")
def test_page_of_a_failed_check_shows_the_problem_and_the_fix(ui: str) -> None:
    sync = pytest.importorskip("playwright.sync_api")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.goto(f"{ui}/assets/echo/poc_report?view=checks", wait_until="domcontentloaded")
        page.get_by_text("mini_training_lowers_loss").first.wait_for(timeout=60_000)
        page.goto(
            f"{ui}/assets/echo/poc_report?view=checks&checkDetail=mini_training_lowers_loss",
            wait_until="domcontentloaded",
        )
        page.get_by_text("Lower learning_rate").first.wait_for(timeout=60_000)
        text = page.inner_text("body")
        browser.close()

    assert "mini_training_lowers_loss" in text
    assert "learning_rate is too high" in text


def test_background_server_ends_on_sigterm(
    served: "tuple[str, subprocess.Popen[bytes]]",
) -> None:
    """Must run last, because it ends the server of the other tests."""
    url, process = served
    assert is_up(url)

    process.terminate()
    process.wait(timeout=60)

    assert not is_up(url)
