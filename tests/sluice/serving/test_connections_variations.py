"""Further attacks on connections and bodies, each by a different mechanism."""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.connection_settings import ConnectionSettings
from sluice.serving.contract import InputContract
from sluice.serving.hosts import address_for_limits, host_of_target
from sluice.serving.http_errors import InvalidInput
from sluice.workloads.codecs.window_requests import PredictRequest
from tests.sluice.serving.serving_samples import (
    SECRET,
    LinearNetwork,
    RunningServer,
    body,
    candidate,
    deployed,
    quick_settings,
    run_server,
)
from tests.sluice.serving.test_connections import answer_of, closed, connect, described
from tests.support.ipv6_flood import ADDRESSES, PER_ADDRESS

TOKEN = {"authorization": f"Bearer {SECRET}"}
ONE = TrafficSplit(epoch=1, production=candidate("one"))
HOST = b"Host: 127.0.0.1\r\n"
POST = (
    b"POST /predict HTTP/1.1\r\n"
    + HOST
    + f"Authorization: Bearer {SECRET}\r\nContent-Type: application/json\r\n".encode()
)
ASKED = json.dumps(body(1.0)).encode()
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(ASKED), ASKED)
HIDDEN = b"GET /rollout HTTP/1.1\r\n" + HOST + b"\r\n"
"""A request that a proxy takes for a part of the body before it; it would be answered with 401."""
MANY = 4 * 2**20
ATTACKER = "127.0.0.4"
"""Shares its address, and the one connection of it, with honest clients, as behind a gateway."""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    model = deployed("one", 1, LinearNetwork(1.0))
    settings = quick_settings(
        max_body_bytes=MANY,
        connections=ConnectionSettings(
            max_connections=64, max_per_address=1, header_timeout_s=5.0, write_timeout_s=15.0
        ),
    )
    with run_server({model.candidate: model}, ONE, settings=settings) as running:
        yield running


def slowest(server: RunningServer, attack: Callable[[], None]) -> float:
    """Return the longest time [s] that another address waits for an answer during an attack."""
    done = threading.Event()

    def ask() -> float:
        transport = httpx.HTTPTransport(local_address="127.0.0.3")
        with httpx.Client(transport=transport, base_url=server.url, headers=TOKEN) as client:
            worst = 0.0
            while not done.is_set():
                began = time.monotonic()
                assert client.post("/predict", json=body(1.0)).status_code in (200, 429)
                worst = max(worst, time.monotonic() - began)
        return worst

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        try:
            attack()
        finally:
            done.set()
        return asked.result()


def repeated(element: bytes, around: bytes = b"%s") -> bytes:
    return around % b",".join([element] * ((MANY - 100) // (len(element) + 1)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: repeated(b'""', b'{"columns":["a","b"],"windows":[[[%s]]]}'), "windows.0.0.0: "),
        (lambda: repeated(b"[]", b'{"columns":["a","b"],"windows":[[%s]]}'), "windows.0.0: "),
        (lambda: repeated(b"[]", b'{"columns":["a","b"],"windows":[%s]}'), "windows.0: "),
        (lambda: repeated(b'""', b'{"columns":["a"],"windows":[[[0]]],"keys":[%s]}'), "keys.0: "),
        (lambda: repeated(b"0", b'{"columns":[%s],"windows":[[[0]]]}'), "columns.0: "),
        (lambda: b"{%s}" % b",".join(b'"%x":0' % n for n in range(MANY // 10)), "unknown keys"),
    ],
    ids=["values", "rows", "windows", "keys", "columns", "unknown keys"],
)
def test_a_body_with_an_error_in_every_element_does_not_block_the_server(
    server: RunningServer, make: Callable[[], bytes], said: str
) -> None:
    """One of 4 MiB took 6 s of the event loop and 2.2 GB, to describe 1,400,000 errors."""
    content = make()
    answers: list[httpx.Response] = []
    headers = {"content-type": "application/json"}
    worst = slowest(
        server,
        lambda: answers.append(server.client.post("/predict", content=content, headers=headers)),
    )

    assert answers[0].status_code == 422
    assert said in answers[0].json()["what"]
    assert len(answers[0].content) < 3000
    assert worst < 2.0


@pytest.mark.parametrize(
    "names", [("feature_" * (MANY // 8),), [f"f{n}" for n in range(99_999)]], ids=["long", "many"]
)
def test_unknown_column_names_are_cheap(names: Sequence[str]) -> None:
    """A long one was compared with all that are known, and each known one with all that came."""
    contract = InputContract(columns=tuple(f"feature_{n}" for n in range(500)), seq_len=1)
    request = PredictRequest(columns=list(names), windows=[[[0.0]]])
    began = time.thread_time()
    with pytest.raises(InvalidInput, match=r"missing: feature_0, .*; unknown: f"):
        contract.read_windows(request)

    assert time.thread_time() - began < 0.15


@pytest.mark.slow
@pytest.mark.parametrize("burst", [1, 4])
def test_unread_responses_occupy_no_slots(server: RunningServer, burst: int) -> None:
    """Without a token: all connections had an answer under way, and everybody else got 503.

    A request that came in advance, or comes while the client does not read, must not give the place
    back.
    """
    httpx.get(f"{server.url}/openapi.json")  # the first one takes its time
    sent, initial, evicted = 0, described(server), closed(server, "evicted")
    request = b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n"
    with connect(server, ATTACKER) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        began = changed = time.monotonic()
        answered = 0.0
        # Half a second without a further response: the buffers of both kernels are full. After a
        # shorter time they may still take some, and a client whose response moves keeps its place.
        while (now := time.monotonic()) - began < 60 and now - changed < 0.5:
            if described(server) - initial > answered:
                answered, changed = described(server) - initial, now
            waiting = sent - answered
            if waiting < 8:  # more than 16 would be refused as too many in advance
                for _ in range(0, 8 - int(waiting), burst):
                    connection.sendall(request * burst)
                    sent += burst
                changed = now
        statuses = []
        for _ in range(3):
            with connect(server, ATTACKER) as honest:
                honest.sendall(b"GET /healthz HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
                statuses.append(answer_of(honest)[:12])

    assert waiting >= 8
    assert statuses == [b"HTTP/1.1 200"] * 3
    assert closed(server, "evicted") > evicted


def test_incomplete_bodies_are_dropped_for_others_of_their_token() -> None:
    """Few connections: 33 such bodies took all 128 MiB, and the only token's holders got 503."""
    model = deployed("one", 1, LinearNetwork(1.0))
    settings = quick_settings(body_timeout_s=20.0, body_grace_s=20.0, max_body_memory_bytes=400_000)
    almost = POST + b"Content-Length: 100000\r\n\r\n" + b" " * 99_999
    with (
        run_server({model.candidate: model}, ONE, settings=settings) as server,
        contextlib.ExitStack() as stack,
    ):
        held = [stack.enter_context(connect(server)) for _ in range(4)]
        for connection in held:
            connection.sendall(almost)
        memory = server.serving.admission._memory._share
        server.wait_for(lambda: memory.used >= 399_996)
        fresh = server.predict(1.0).status_code
        server.wait_for(lambda: server.predict(1.0).status_code == 200)
        after = [server.predict(1.0).status_code for _ in range(5)]
        ended = held[0].recv(65536)
        for connection in held[1:]:  # and those that stayed are still good
            connection.sendall(b"x")
        rest = [connection.recv(65536)[:12] for connection in held[1:]]

        assert memory.used == 0

    assert fresh == 503  # at full speed nobody ends anybody
    assert after == [200] * 5
    assert ended.startswith(b"HTTP/1.1 503")
    assert rest == [b"HTTP/1.1 400"] * 3


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("127.0.0.2", "127.0.0.2"),
        ("::ffff:127.0.0.2", "127.0.0.2"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_a_client_cannot_choose_its_network(address: str, network: str) -> None:
    assert address_for_limits(address) == network


@pytest.mark.slow
def test_one_ipv6_network_is_one_address() -> None:
    """It has 2^64 addresses: limits of an address, and a client's share of faults, were none."""
    unshare = shutil.which("unshare")
    added = [f"ip addr add {address}/64 dev lo nodad" for address in ADDRESSES]
    script = " && ".join(["ip link set lo up", *added, f'exec "{sys.executable}" -m "$0"'])
    if (
        unshare is None
        or subprocess.run(
            [unshare, "-rn", "sh", "-c", " && ".join(["ip link set lo up", *added])],
            capture_output=True,
            check=False,
        ).returncode
    ):
        pytest.skip("This machine lets nobody make a network namespace with IPv6 (unshare -rn).")
    ended = subprocess.run(
        [unshare, "-rn", "sh", "-c", script, "tests.support.ipv6_flood"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found = json.loads(ended.stdout)

    assert found["before"] == 2 * PER_ADDRESS + 1
    assert found["before"] < found["flooded"] <= found["before"] + PER_ADDRESS
    assert found["origins"] == 1


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://evil.example/healthz", b"127.0.0.1", b"421"),
        (b"HTTPS://evil.example/healthz", b"127.0.0.1", b"421"),
        (b"http://127.0.0.1@evil.example/healthz", b"127.0.0.1", b"421"),
        (b"http://evil.example/healthz?http://127.0.0.1/", b"127.0.0.1", b"421"),
        (b"http://127.0.0.1:80/healthz", b"127.0.0.1\r\nHost: evil.example", b"421"),
        (b"http:///healthz", b"127.0.0.1", b"4"),
        (b"//evil.example/healthz", b"127.0.0.1", b"404"),
        (b"/http://evil.example/healthz", b"127.0.0.1", b"404"),
        (b"http://127.0.0.1:80/healthz", b"127.0.0.1", b"200"),
        (b"/healthz?next=http://evil.example/", b"127.0.0.1", b"200"),
    ],
)
def test_the_host_of_an_absolute_target_is_used(
    server: RunningServer, target: bytes, host: bytes, status: bytes
) -> None:
    """A proxy routes by the target, but the server checked only the Host header."""
    with connect(server) as connection:
        connection.sendall(
            b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n"
        )
        answer = answer_of(connection)

    assert answer.startswith(b"HTTP/1.1 " + status)


def test_a_path_has_no_host() -> None:
    assert host_of_target(b"/a?b=http://c/") is None
    assert host_of_target(b"http://c") == b"c"


@pytest.mark.parametrize(
    "parts",
    [
        [POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS, HIDDEN],
        [POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + CHUNKS, HIDDEN],
        [POST + b"Content-Length: 4\r\nContent-Length: 90\r\n\r\n" + ASKED, HIDDEN],
        [POST + b"Content-Length: 4, 4\r\n\r\n" + ASKED, HIDDEN],
        [POST + b"Content-Length: +4\r\n\r\n" + ASKED, HIDDEN],
        [POST + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNKS, HIDDEN],
        [POST + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKS, HIDDEN],
        [POST + b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKS, HIDDEN],
        [POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + CHUNKS, HIDDEN],
        [POST + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS.replace(b"\r", b""), HIDDEN],
        [POST + b"Transfer-Encoding: chunked\r\n\r\n10000000000000001\r\n", HIDDEN],
        [POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 66\r\n\r\n", HIDDEN],
        [POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS, HIDDEN],
    ],
    ids=lambda parts: parts[0][len(POST) : len(POST) + 30].decode().strip(),
)
def test_request_smuggling_is_refused(server: RunningServer, parts: list[bytes]) -> None:
    """Proxies that take another header for the length of a body pass such requests on."""
    for sent in ([b"".join(parts)], parts):
        with connect(server) as connection:
            for part in sent:
                with contextlib.suppress(OSError):
                    connection.sendall(part)
            answer = answer_of(connection)

        assert answer.count(b"HTTP/1.1 ") <= 1
        assert b"HTTP/1.1 401" not in answer


@pytest.mark.slow
def test_short_connections_from_many_addresses_delay_no_request(server: RunningServer) -> None:
    """Half of them leave at once, half close their side only; 2,000 in about a second."""

    def churn() -> None:
        opened: list[socket.socket] = []
        for number in range(2000):
            with contextlib.suppress(OSError):
                connection = connect(server, f"127.0.0.{10 + number % 240}")
                connection.sendall((b"", b"\r\n", b"GET", HIDDEN)[number % 4])
                if number % 8 < 4:
                    connection.close()
                else:
                    connection.shutdown(socket.SHUT_WR)
                    opened.append(connection)
            if len(opened) > 100:
                opened.pop(0).close()
        for connection in opened:
            connection.close()

    worst = slowest(server, churn)
    server.wait_for(lambda: server.metrics()["sluice_connections"] <= 3)

    assert worst < 2.0
