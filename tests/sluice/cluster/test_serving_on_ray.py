"""The app on Ray Serve: here, beside the cluster that the tests of this folder share."""

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
# Ray Serve of itself, when it is imported
pytestmark = [
    pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`"),
    pytest.mark.usefixtures("ray_here"),
]

WINDOW = json.dumps({"columns": ["slope", "value"], "windows": [[[0.0, 1.0]] * 8]}).encode()
HEADERS = {"authorization": f"Bearer {SECRET}", "content-type": "application/json"}


@pytest.fixture
def recipe(tmp_path: Path) -> ServerSpec:
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
def _serving(recipe: ServerSpec, stop: threading.Event) -> Iterator[str]:
    ready, ports = threading.Event(), []

    def on_ready(port: int) -> None:
        ports.append(port)
        ready.set()

    def run() -> None:
        serve_on_ray(
            recipe,
            replicas=2,
            address=None,
            port=0,
            on_ready=on_ready,
            stop=stop,
        )

    ended = run_in_background(run, name="driver")
    ended.add_done_callback(lambda _: ready.set())
    try:
        assert ready.wait(180)
        if ended.done():
            ended.result()
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        stop.set()
        ended.result(30)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_two_replicas_answer_report_and_finish_what_is_under_way(
    recipe: ServerSpec,
) -> None:
    stop = threading.Event()
    with _serving(recipe, stop) as url:
        _until(lambda: _have_the_challenger(recipe))  # from then on requests are counted
        with httpx.Client(base_url=url, headers=HEADERS) as client:
            answers = [client.post("/predict", content=WINDOW) for _ in range(30)]
            nobody = httpx.post(f"{url}/predict", content=WINDOW)
        under_way = _half_sent(url)
        stop.set()
        _until(lambda: httpx.get(f"{url}/readyz").status_code == 503)
        time.sleep(2 * recipe.settings.drain_delay_s)
        under_way.send(WINDOW[20:])
        late = under_way.getresponse()

        assert {answer.status_code for answer in answers} == {200}
        assert {answer.json()["version"] for answer in answers} <= {1, 2}
        assert nobody.status_code == 401
        assert late.status == 200
        assert json.loads(late.read())["outputs"]
    assert _reported(recipe) == [2, 31]
    with pytest.raises(httpx.TransportError):  # refused, or reset while the last one closes
        httpx.get(f"{url}/healthz")


def test_more_replicas_than_cores_are_refused_at_once(recipe: ServerSpec) -> None:
    with pytest.raises(SettingsError, match=r"--replicas 9\) needs one CPU core, but Ray has 2"):
        _refused(recipe, replicas=9, port=0)


def test_a_port_that_is_taken_is_refused_before_anything_starts(recipe: ServerSpec) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"cannot listen on 127.0.0.1 port {port}"):
            _refused(recipe, replicas=1, port=port)


def _refused(recipe: ServerSpec, *, replicas: int, port: int) -> None:
    serve_on_ray(
        recipe,
        replicas=replicas,
        address=None,
        port=port,
        on_ready=lambda _: None,
        stop=threading.Event(),
    )


def _reported(recipe: ServerSpec) -> list[int]:
    """Return what each server that reported to the registry had counted."""
    with RolloutLedger.open(recipe.registry_url, clock=lambda: datetime.now(UTC)) as ledger:
        rollout = ledger.rollout(MODEL)
        assert rollout is not None
        window = ledger.observations.traffic_counts(rollout)
        servers = ledger.observations.servers(MODEL, since=rollout.started_at)
    assert all(server.draining for server in servers)
    return [len(servers), window.production.requests + window.challenger.requests]


def _have_the_challenger(recipe: ServerSpec) -> bool:
    with RolloutLedger.open(recipe.registry_url, clock=lambda: datetime.now(UTC)) as ledger:
        rollout = ledger.rollout(MODEL)
        assert rollout is not None
        servers = ledger.observations.servers(MODEL, since=rollout.started_at)
    return [server.challenger for server in servers] == [2, 2]


def _half_sent(url: str) -> http.client.HTTPConnection:
    """A request whose body is not complete yet."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    connection.putrequest("POST", "/predict")
    for name, value in HEADERS.items():
        connection.putheader(name, value)
    connection.putheader("content-length", str(len(WINDOW)))
    connection.endheaders(WINDOW[:20])
    return connection


def _until(true) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline, "it did not happen within 120 s"
        time.sleep(0.05)
