"""Serving on Ray Serve with replicas, on the cluster of the tests of this folder."""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import SettingsError
from sluice.base.home import Home
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.settings import RolloutSettings
from sluice.serving.background import run_in_background
from sluice.serving.ray_serve import serve_on_ray
from sluice.serving.server_spec import ServerSpec
from sluice.serving.settings import ServingSettings
from sluice.serving.tokens import Tokens
from tests.sluice.registry.ledger_samples import MODEL, promote_chain, register_sample

SECRET = "correct-horse-battery"
# The warning comes from the import of Ray Serve.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`"),
    pytest.mark.usefixtures("ray_here"),
]

WINDOW = json.dumps({"columns": ["slope", "value"], "windows": [[[0.0, 1.0]] * 8]}).encode()
HEADERS = {"authorization": f"Bearer {SECRET}", "content-type": "application/json"}


@pytest.fixture
def spec(tmp_path: Path) -> ServerSpec:
    """A registry with version 1 in production and a rollout of version 2 at 5 %."""
    home = Home(root=tmp_path, registry_url=f"sqlite:///{tmp_path / 'registry.db'}")
    store = ArtifactStore(home.artifacts)
    with RolloutLedger.open(home.registry_url, clock=lambda: datetime.now(UTC)) as ledger:
        promote_chain(ledger, store, 1)
        before = ledger.version(MODEL, 1).candidate
        number = register_sample(ledger, store, salt=2, reference=before)
        ledger.start_rollout(MODEL, number, RolloutSettings(), actor="ada", reason="try it")
    return ServerSpec(
        model=MODEL,
        settings=ServingSettings(
            drain_delay_s=0.3, drain_timeout_s=5.0, poll_interval_s=0.1, body_grace_s=10.0
        ),
        registry_url=home.registry_url,
        artifacts=home.artifacts,
        tokens=Tokens.of(serve=SECRET),
    )


@contextlib.contextmanager
def _run_replicas(spec: ServerSpec, stop: threading.Event) -> Iterator[str]:
    ready, ports = threading.Event(), []

    def on_ready(port: int) -> None:
        ports.append(port)
        ready.set()

    def run() -> None:
        serve_on_ray(
            spec,
            replicas=2,
            address=None,
            port=0,
            on_ready=on_ready,
            stop=stop,
        )

    driver = run_in_background(run, name="driver")
    driver.add_done_callback(lambda _: ready.set())
    try:
        assert ready.wait(180)
        if driver.done():
            driver.result()
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        stop.set()
        driver.result(30)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_two_replicas_serve_report_and_finish_requests_in_progress(
    spec: ServerSpec,
) -> None:
    stop = threading.Event()
    with _run_replicas(spec, stop) as url:
        _wait_until(lambda: _have_challenger(spec))  # requests are counted only then
        with httpx.Client(base_url=url, headers=HEADERS) as client:
            responses = [client.post("/predict", content=WINDOW) for _ in range(30)]
            without_token = httpx.post(f"{url}/predict", content=WINDOW)
        in_progress = _send_partial_request(url)
        stop.set()
        _wait_until(lambda: httpx.get(f"{url}/readyz").status_code == 503)
        time.sleep(2 * spec.settings.drain_delay_s)
        in_progress.send(WINDOW[20:])
        late_response = in_progress.getresponse()

        assert {response.status_code for response in responses} == {200}
        assert {response.json()["version"] for response in responses} <= {1, 2}
        assert without_token.status_code == 401
        assert late_response.status == 200
        assert json.loads(late_response.read())["outputs"]
    assert _count_reported(spec) == [2, 31]
    with pytest.raises(httpx.TransportError):  # refused, or reset while the last one closes
        httpx.get(f"{url}/healthz")


def test_more_replicas_than_cores_are_refused(spec: ServerSpec) -> None:
    with pytest.raises(SettingsError, match=r"--replicas 9\) needs one CPU core, but Ray has 2"):
        _serve(spec, replicas=9, port=0)


def test_a_port_in_use_is_refused(spec: ServerSpec) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(SettingsError, match=f"cannot listen on 127.0.0.1 port {port}"):
            _serve(spec, replicas=1, port=port)


def _serve(spec: ServerSpec, *, replicas: int, port: int) -> None:
    serve_on_ray(
        spec,
        replicas=replicas,
        address=None,
        port=port,
        on_ready=lambda _: None,
        stop=threading.Event(),
    )


def _count_reported(spec: ServerSpec) -> list[int]:
    """Return the number of servers that reported to the registry, and of counted requests."""
    with RolloutLedger.open(spec.registry_url, clock=lambda: datetime.now(UTC)) as ledger:
        rollout = ledger.rollout(MODEL)
        assert rollout is not None
        window = ledger.observations.traffic_counts(rollout)
        servers = ledger.observations.servers(MODEL, since=rollout.started_at)
    assert all(server.draining for server in servers)
    return [len(servers), window.production.requests + window.challenger.requests]


def _have_challenger(spec: ServerSpec) -> bool:
    with RolloutLedger.open(spec.registry_url, clock=lambda: datetime.now(UTC)) as ledger:
        rollout = ledger.rollout(MODEL)
        assert rollout is not None
        servers = ledger.observations.servers(MODEL, since=rollout.started_at)
    return [server.challenger for server in servers] == [2, 2]


def _send_partial_request(url: str) -> http.client.HTTPConnection:
    """Send a request with an incomplete body."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    connection.putrequest("POST", "/predict")
    for name, value in HEADERS.items():
        connection.putheader(name, value)
    connection.putheader("content-length", str(len(WINDOW)))
    connection.endheaders(WINDOW[:20])
    return connection


def _wait_until(condition) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met within 120 s"
        time.sleep(0.05)
