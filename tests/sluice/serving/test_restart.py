"""Servers restart without failed requests behind a balancer and recover from a kill."""

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
class ServerProcesses:
    """Starts servers on the registry of a home and ends them."""

    process: "subprocess.Popen[str]"
    home: Home
    pids: dict[int, int] = field(default_factory=dict)
    """Process ids by port."""

    def start(self, port: int) -> dict[str, Any]:
        """Start a server and return its ready message."""
        out = self.home.root / f"{port}-{time.monotonic_ns()}"
        self.pids[port] = self._send_command(
            arguments=["serve", MODEL, "--port", str(port)],
            environ={"SLUICE_HOME": str(self.home.root)},
            out=str(out),
            err=f"{out}.err",
        )
        for _ in range(2000):
            if out.exists() and (message := out.read_text()).endswith("\n"):
                return dict(json.loads(message))
            time.sleep(0.01)
        raise AssertionError(Path(f"{out}.err").read_text())

    def end(self, port: int, number: int) -> int:
        """Send a signal; return the exit code."""
        pid = self.pids.pop(port)
        os.kill(pid, number)
        return self._send_command(wait=pid)

    def _send_command(self, **command: Any) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(command), file=self.process.stdin, flush=True)
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
def fork_server() -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.command_forks"],
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
def servers(
    fork_server: "subprocess.Popen[str]", home: Home, ledger: RolloutLedger
) -> Iterator[ServerProcesses]:
    assert ledger.models() == [MODEL]
    processes = ServerProcesses(fork_server, home)
    yield processes
    for port in tuple(processes.pids):
        processes.end(port, signal.SIGKILL)


@pytest.mark.slow
def test_a_rolling_restart_fails_no_request(servers: ServerProcesses) -> None:
    load, codes = _restarted_under_load(servers, requests=1)

    assert codes == [0, 0]
    assert load.failures == []
    assert load.answered == load.sent > PER_S  # the drain of each restart takes about a second


@pytest.mark.exhaustive
def test_ten_thousand_requests_survive_restarting_servers(
    servers: ServerProcesses, record_property: Callable[[str, object], None]
) -> None:
    load, codes = _restarted_under_load(servers, requests=10_000)

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
def test_a_killed_server_restores_its_split_and_counts_nothing_twice(
    servers: ServerProcesses, home: Home, ledger: RolloutLedger
) -> None:
    """During a rollout, counts of the killed server stay in the registry.

    The process of its challenger ends with it.
    """
    before = ledger.version(MODEL, 1).candidate
    number = register_sample(ledger, ArtifactStore(home.artifacts), salt=2, reference=before)
    settings = RolloutSettings(shares=(0.5, 1.0), min_requests=1000)
    rollout = ledger.start_rollout(MODEL, number, settings, actor="ada", reason="try").rollout
    port = _free_port()
    url = servers.start(port)["url"]
    _wait_until(lambda: httpx.get(f"{url}/model").json()["challenger"] is not None)
    (child,) = psutil.Process(servers.pids[port]).children(recursive=True)
    _send_requests(url, 60)
    before_kill = _wait_for_counts(ledger, rollout, 60)
    evaluated = advance(rollout, before_kill, now=before_kill.until, production=before).rollout

    child.suspend()  # a suspended process does not notice that the pipe is closed
    assert servers.end(port, signal.SIGKILL) == -signal.SIGKILL
    try:
        child.wait(5)  # the system reaps it, since its parent has ended
    except psutil.TimeoutExpired:
        child.kill()
        raise
    servers.start(port)  # ready with production only; the challenger loads in the background
    _wait_until(lambda: httpx.get(f"{url}/model").json()["challenger"] is not None)
    description = httpx.get(f"{url}/model").json()
    own_counts = TrafficCounts.model_validate(httpx.get(f"{url}/rollout").json()["window"])
    after_restart = _wait_for_counts(ledger, rollout, 60)
    _send_requests(url, 20)
    last = _wait_for_counts(ledger, rollout, 80)
    after = advance(evaluated, last, now=last.until, production=before)

    assert (description["production"]["version"], description["challenger"]["version"]) == (1, 2)
    assert (description["share"], description["rollout"]) == (0.5, rollout.id)
    assert (own_counts.production, own_counts.challenger) == (ArmCounts(), ArmCounts())
    assert (after_restart.production, after_restart.challenger) == (
        before_kill.production,
        before_kill.challenger,
    )
    assert after.outcome == "wait"
    assert after.rollout.evidence.challenger == last.challenger
    assert after.rollout.evidence.log_evidence == rollout.evidence.log_evidence


def _wait_for_counts(ledger: RolloutLedger, rollout: Rollout, requests: int) -> TrafficCounts:
    """Return the counts of all servers once they reach a number of requests."""
    counts: list[TrafficCounts] = []

    def is_reached() -> bool:
        counts.append(ledger.observations.traffic_counts(rollout))
        return counts[-1].production.requests + counts[-1].challenger.requests >= requests

    _wait_until(is_reached)
    assert counts[-1].production.requests + counts[-1].challenger.requests == requests
    return counts[-1]


def _send_requests(url: str, users: int) -> None:
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

    def due_times(self, is_needed: Callable[[], bool]) -> Iterator[float]:
        """Yield the due times of requests, 100 per second, while more are needed."""
        began = time.monotonic()
        while is_needed():
            self.sent += 1
            yield began + self.sent / PER_S


def _restarted_under_load(servers: ServerProcesses, *, requests: int) -> tuple[_Load, list[int]]:
    """Restart two servers in turn, each at least once, until the number of requests is sent."""
    ports = [_free_port(), _free_port()]
    for port in ports:
        servers.start(port)
    codes: list[int] = []
    load = _Load()
    finished = asyncio.Event()

    def restart(port: int) -> None:
        codes.append(servers.end(port, signal.SIGTERM))
        servers.start(port)
        _wait_until(lambda: port in balancer.ready_ports)

    async def restart_under_load() -> None:
        due_times = load.due_times(lambda: not finished.is_set())
        clients = [_client(balancer.port, due_times, load) for _ in range(8)]
        sending = asyncio.gather(*clients)
        try:
            while load.sent < requests or len(codes) < len(ports):
                await asyncio.to_thread(restart, ports[len(codes) % 2])
        finally:
            finished.set()
            await sending

    with run_balancer(ports) as balancer:
        _wait_until(lambda: balancer.ready_ports == set(ports))
        asyncio.run(restart_under_load())
    return load, codes


async def _client(port: int, due_times: Iterator[float], load: _Load) -> None:
    """Send requests on one connection until the server closes it, then reconnect."""
    streams = None
    for due in due_times:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        try:
            if streams is None:
                streams = await asyncio.open_connection("127.0.0.1", port)
            status, closes = await asyncio.wait_for(_exchange(*streams), 10)
        except (OSError, EOFError, TimeoutError) as error:
            load.failures.append(repr(error))
            closes = True
        else:
            load.slowest_s = max(load.slowest_s, time.monotonic() - due)
            load.answered += status == 200
            if status != 200:
                load.failures.append(str(status))
        if closes and streams is not None:
            streams[1].close()
            streams = None
    if streams is not None:
        streams[1].close()


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, bool]:
    """Return the status of one response, and whether the server closes the connection."""
    writer.write(REQUEST)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    await reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))
    return int(head.split()[1]), b"connection: close" in head


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("the condition was not met within 20 s")
