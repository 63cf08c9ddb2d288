"""Restarted servers: unnoticed behind a balancer; after a kill the ledger decides."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.home import Home
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.observations import ArmCounts, TrafficCounts
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Rollout
from sluice.rollout.state_machine import advance
from tests.sluice.registry.ledger_samples import MODEL, promote_chain, register_sample
from tests.support.balancer import run_balancer

ROOT = Path(__file__).parents[3]
PER_S = 100
BODY = json.dumps({"columns": ["slope", "value"], "windows": [[[0.0, 1.0]] * 8]}).encode()
REQUEST = (
    b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)


@dataclass
class Nursery:
    """Starts servers on the registry of a home and ends them."""

    process: "subprocess.Popen[str]"
    home: Home
    pids: dict[int, int] = field(default_factory=dict)
    """By port."""

    def start(self, port: int) -> dict[str, Any]:
        """Return what the server says once it is ready."""
        out = self.home.root / f"{port}-{time.monotonic_ns()}"
        self.pids[port] = self._ask(
            arguments=["serve", MODEL, "--port", str(port)],
            environ={"SLUICE_HOME": str(self.home.root)},
            out=str(out),
            err=f"{out}.err",
        )
        for _ in range(2000):
            if out.exists() and (said := out.read_text()).endswith("\n"):
                return dict(json.loads(said))
            time.sleep(0.01)
        raise AssertionError(Path(f"{out}.err").read_text())

    def end(self, port: int, number: int) -> int:
        """Send a signal; return the exit code."""
        pid = self.pids.pop(port)
        os.kill(pid, number)
        return self._ask(wait=pid)

    def _ask(self, **asked: Any) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(root=tmp_path, registry_url=f"sqlite:///{tmp_path / 'registry.db'}")


@pytest.fixture
def ledger(home: Home) -> Iterator[RolloutLedger]:
    with RolloutLedger.open(home.registry_url, clock=lambda: datetime.now(UTC)) as opened:
        promote_chain(opened, ArtifactStore(home.artifacts), 1)
        yield opened


@pytest.fixture(scope="module")
def forking() -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.nursery"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


@pytest.fixture
def nursery(
    forking: "subprocess.Popen[str]", home: Home, ledger: RolloutLedger
) -> Iterator[Nursery]:
    assert ledger.models() == [MODEL]
    started = Nursery(forking, home)
    yield started
    for port in tuple(started.pids):
        started.end(port, signal.SIGKILL)


@pytest.mark.slow
def test_a_rolling_restart_fails_no_request(nursery: Nursery) -> None:
    load, codes = _restarted_under_load(nursery, requests=1)

    assert codes == [0, 0]
    assert load.failures == []
    assert load.answered == load.sent > PER_S  # each gives a second of notice


@pytest.mark.exhaustive
def test_ten_thousand_requests_survive_restarting_servers(
    nursery: Nursery, record_property: Callable[[str, object], None]
) -> None:
    load, codes = _restarted_under_load(nursery, requests=10_000)

    record_property(
        "measurement",
        f"{load.answered} of {load.sent} requests answered over {len(codes)} restarts, the slowest "
        f"after {load.slowest_s:.2f} s",
    )
    assert set(codes) == {0}
    assert len(codes) > 10
    assert load.failures == []
    assert load.answered == load.sent >= 10_000


@pytest.mark.slow
def test_a_killed_server_follows_the_ledger_and_restarts_its_counts(
    nursery: Nursery, home: Home, ledger: RolloutLedger
) -> None:
    """Mid-rollout: what it had counted stays in the registry, and nothing counts twice.

    Its challenger's process ends with it.
    """
    before = ledger.version(MODEL, 1).candidate
    number = register_sample(ledger, ArtifactStore(home.artifacts), salt=2, reference=before)
    settings = RolloutSettings(shares=(0.5, 1.0), min_requests=1000)
    rollout = ledger.start_rollout(MODEL, number, settings, actor="ada", reason="try").rollout
    port = _free_port()
    url = nursery.start(port)["url"]
    _until(lambda: httpx.get(f"{url}/model").json()["challenger"] is not None)
    (child,) = psutil.Process(nursery.pids[port]).children(recursive=True)
    _ask(url, 60)
    first = _reported(ledger, rollout, 60)
    seen = advance(rollout, first, now=first.until, production=before).rollout

    child.suspend()  # as one that hangs, it does not see that the pipe ends
    assert nursery.end(port, signal.SIGKILL) == -signal.SIGKILL
    try:
        child.wait(5)  # the system reaps it: its parent is gone
    except psutil.TimeoutExpired:
        child.kill()
        raise
    nursery.start(port)  # ready with production alone: the challenger loads beside it
    _until(lambda: httpx.get(f"{url}/model").json()["challenger"] is not None)
    card = httpx.get(f"{url}/model").json()
    own = TrafficCounts.model_validate(httpx.get(f"{url}/rollout").json()["window"])
    still = _reported(ledger, rollout, 60)
    _ask(url, 20)
    last = _reported(ledger, rollout, 80)
    after = advance(seen, last, now=last.until, production=before)

    assert (card["production"]["version"], card["challenger"]["version"]) == (1, 2)
    assert (card["share"], card["rollout"]) == (0.5, rollout.id)
    assert (own.production, own.challenger) == (ArmCounts(), ArmCounts())
    assert (still.production, still.challenger) == (first.production, first.challenger)
    assert after.outcome == "wait"
    assert after.rollout.evidence.challenger == last.challenger
    assert after.rollout.evidence.log_evidence == rollout.evidence.log_evidence


def _reported(ledger: RolloutLedger, rollout: Rollout, requests: int) -> TrafficCounts:
    """Return the counts of all servers once they reach a number of requests."""
    found: list[TrafficCounts] = []

    def is_there() -> bool:
        found.append(ledger.observations.traffic_counts(rollout))
        return found[-1].production.requests + found[-1].challenger.requests >= requests

    _until(is_there)
    assert found[-1].production.requests + found[-1].challenger.requests == requests
    return found[-1]


def _ask(url: str, users: int) -> None:
    with httpx.Client(base_url=url) as client:
        for user in range(users):
            body = json.loads(BODY) | {"user": str(user)}
            assert client.post("/predict", json=body).status_code == 200


@dataclass
class _Load:
    sent: int = 0
    answered: int = 0
    slowest_s: float = 0.0
    failures: list[str] = field(default_factory=list)

    def moments(self, wanted: Callable[[], bool]) -> Iterator[float]:
        """Yield when requests are due, 100 a second, while more are wanted."""
        began = time.monotonic()
        while wanted():
            self.sent += 1
            yield began + self.sent / PER_S


def _restarted_under_load(nursery: Nursery, *, requests: int) -> tuple[_Load, list[int]]:
    """Restart two servers in turn, each at least once, until a number of requests was sent."""
    ports = [_free_port(), _free_port()]
    for port in ports:
        nursery.start(port)
    codes: list[int] = []
    load = _Load()
    over = asyncio.Event()

    def restart(port: int) -> None:
        codes.append(nursery.end(port, signal.SIGTERM))
        nursery.start(port)
        _until(lambda: port in balancer.ready)

    async def both() -> None:
        moments = load.moments(lambda: not over.is_set())
        clients = [_client(balancer.port, moments, load) for _ in range(8)]
        sending = asyncio.gather(*clients)
        try:
            while load.sent < requests or len(codes) < len(ports):
                await asyncio.to_thread(restart, ports[len(codes) % 2])
        finally:
            over.set()
            await sending

    with run_balancer(ports) as balancer:
        _until(lambda: balancer.ready == set(ports))
        asyncio.run(both())
    return load, codes


async def _client(port: int, due: Iterator[float], load: _Load) -> None:
    """Keep one connection for as long as the server wants it."""
    streams = None
    for moment in due:
        await asyncio.sleep(max(0.0, moment - time.monotonic()))
        try:
            if streams is None:
                streams = await asyncio.open_connection("127.0.0.1", port)
            status, closes = await asyncio.wait_for(_exchange(*streams), 10)
        except (OSError, EOFError, TimeoutError) as error:
            load.failures.append(repr(error))
            closes = True
        else:
            load.slowest_s = max(load.slowest_s, time.monotonic() - moment)
            load.answered += status == 200
            if status != 200:
                load.failures.append(str(status))
        if closes and streams is not None:
            streams[1].close()
            streams = None
    if streams is not None:
        streams[1].close()


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, bool]:
    """Return the status of one answer, and whether the server wants no more on this connection."""
    writer.write(REQUEST)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    await reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))
    return int(head.split()[1]), b"connection: close" in head


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _until(true: Callable[[], bool]) -> None:
    for _ in range(2000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within 20 s")
