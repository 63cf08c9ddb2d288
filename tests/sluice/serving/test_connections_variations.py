"""Further attacks by connections and request bodies do not affect other clients."""

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
from tests.sluice.serving.test_connections import (
    connect,
    count_closed,
    count_descriptions,
    read_until_closed,
)
from tests.support.ipv6_flood import ADDRESSES, MAX_PER_ADDRESS

TOKEN = {"authorization": f"Bearer {SECRET}"}
ONE = TrafficSplit(epoch=1, production=candidate("one"))
HOST = b"Host: 127.0.0.1\r\n"
POST = (
    b"POST /predict HTTP/1.1\r\n"
    + HOST
    + f"Authorization: Bearer {SECRET}\r\nContent-Type: application/json\r\n".encode()
)
CONTENT = json.dumps(body(1.0)).encode()
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(CONTENT), CONTENT)
HIDDEN = b"GET /rollout HTTP/1.1\r\n" + HOST + b"\r\n"
"""A request that a proxy regards as part of the previous body. If handled, it gets 401."""
MAX_BODY_BYTES = 4 * 2**20
ATTACKER = "127.0.0.4"
"""Address that the attacker shares with honest clients, as behind a gateway.

One connection per address is allowed.
"""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    model = deployed("one", 1, LinearNetwork(1.0))
    settings = quick_settings(
        max_body_bytes=MAX_BODY_BYTES,
        connections=ConnectionSettings(
            max_connections=64, max_per_address=1, header_timeout_s=5.0, write_timeout_s=15.0
        ),
    )
    with run_server({model.candidate: model}, ONE, settings=settings) as running:
        yield running


def measure_latency(server: RunningServer, attack: Callable[[], None]) -> float:
    """Return the highest latency [s] of requests from another address during an attack."""
    done = threading.Event()

    def ask() -> float:
        transport = httpx.HTTPTransport(local_address="127.0.0.3")
        with httpx.Client(transport=transport, base_url=server.url, headers=TOKEN) as client:
            latency_s = 0.0
            while not done.is_set():
                began = time.monotonic()
                assert client.post("/predict", json=body(1.0)).status_code in (200, 429)
                latency_s = max(latency_s, time.monotonic() - began)
        return latency_s

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(ask)
        try:
            attack()
        finally:
            done.set()
        return future.result()


def repeat_element(element: bytes, template: bytes = b"%s") -> bytes:
    return template % b",".join([element] * ((MAX_BODY_BYTES - 100) // (len(element) + 1)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make_content", "message"),
    [
        (
            lambda: repeat_element(b'""', b'{"columns":["a","b"],"windows":[[[%s]]]}'),
            "windows.0.0.0: ",
        ),
        (lambda: repeat_element(b"[]", b'{"columns":["a","b"],"windows":[[%s]]}'), "windows.0.0: "),
        (lambda: repeat_element(b"[]", b'{"columns":["a","b"],"windows":[%s]}'), "windows.0: "),
        (
            lambda: repeat_element(b'""', b'{"columns":["a"],"windows":[[[0]]],"keys":[%s]}'),
            "keys.0: ",
        ),
        (lambda: repeat_element(b"0", b'{"columns":[%s],"windows":[[[0]]]}'), "columns.0: "),
        (
            lambda: b"{%s}" % b",".join(b'"%x":0' % n for n in range(MAX_BODY_BYTES // 10)),
            "unknown keys",
        ),
    ],
    ids=["values", "rows", "windows", "keys", "columns", "unknown keys"],
)
def test_a_body_with_an_error_in_every_element_does_not_block_the_event_loop(
    server: RunningServer, make_content: Callable[[], bytes], message: str
) -> None:
    """The description of 1,400,000 errors (4 MiB body) took 6 s of the event loop and 2.2 GB."""
    content = make_content()
    responses: list[httpx.Response] = []
    headers = {"content-type": "application/json"}
    latency_s = measure_latency(
        server,
        lambda: responses.append(server.client.post("/predict", content=content, headers=headers)),
    )

    assert responses[0].status_code == 422
    assert message in responses[0].json()["what"]
    assert len(responses[0].content) < 3000
    assert latency_s < 2.0


@pytest.mark.parametrize(
    "names",
    [("feature_" * (MAX_BODY_BYTES // 8),), [f"f{n}" for n in range(99_999)]],
    ids=["long", "many"],
)
def test_unknown_column_names_are_reported_within_150_ms(names: Sequence[str]) -> None:
    """Each unknown name used to be compared with each known one to find a suggestion."""
    contract = InputContract(columns=tuple(f"feature_{n}" for n in range(500)), seq_len=1)
    request = PredictRequest(columns=list(names), windows=[[[0.0]]])
    began = time.thread_time()
    with pytest.raises(InvalidInput, match=r"missing: feature_0, .*; unknown: f"):
        contract.read_windows(request)

    assert time.thread_time() - began < 0.15


@pytest.mark.slow
@pytest.mark.parametrize("burst", [1, 4])
def test_unread_responses_occupy_no_slots(server: RunningServer, burst: int) -> None:
    """Otherwise a client without a token occupies all connections, and others get 503.

    The slot must stay evictable when the client pipelines requests or sends more without reading.
    """
    httpx.get(f"{server.url}/openapi.json")  # the first response is slow
    sent, initial, evicted = 0, count_descriptions(server), count_closed(server, "evicted")
    request = b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n"
    with connect(server, ATTACKER) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        began = changed = time.monotonic()
        answered = 0.0
        # After 0.5 s without a further response, the buffers of both kernels are full. After less,
        # they may still accept data, and a client that makes progress keeps its slot.
        while (now := time.monotonic()) - began < 60 and now - changed < 0.5:
            if count_descriptions(server) - initial > answered:
                answered, changed = count_descriptions(server) - initial, now
            waiting = sent - answered
            if waiting < 8:  # more than 16 would exceed the limit of pipelined requests
                for _ in range(0, 8 - int(waiting), burst):
                    connection.sendall(request * burst)
                    sent += burst
                changed = now
        statuses = []
        for _ in range(3):
            with connect(server, ATTACKER) as honest:
                honest.sendall(b"GET /healthz HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
                statuses.append(read_until_closed(honest)[:12])

    assert waiting >= 8
    assert statuses == [b"HTTP/1.1 200"] * 3
    assert count_closed(server, "evicted") > evicted


def test_incomplete_bodies_are_dropped_for_requests_with_the_same_token() -> None:
    """Otherwise 33 such bodies occupy all 128 MiB, and all requests with the token get 503."""
    model = deployed("one", 1, LinearNetwork(1.0))
    settings = quick_settings(body_timeout_s=20.0, body_grace_s=20.0, max_body_memory_bytes=400_000)
    almost = POST + b"Content-Length: 100000\r\n\r\n" + b" " * 99_999
    with (
        run_server({model.candidate: model}, ONE, settings=settings) as server,
        contextlib.ExitStack() as stack,
    ):
        connections = [stack.enter_context(connect(server)) for _ in range(4)]
        for connection in connections:
            connection.sendall(almost)
        memory = server.serving.admission._memory._share
        server.wait_for(lambda: memory.used >= 399_996)
        first_status = server.predict(1.0).status_code
        server.wait_for(lambda: server.predict(1.0).status_code == 200)
        statuses = [server.predict(1.0).status_code for _ in range(5)]
        dropped = connections[0].recv(65536)
        for connection in connections[1:]:  # the remaining bodies are still read
            connection.sendall(b"x")
        responses = [connection.recv(65536)[:12] for connection in connections[1:]]

        assert memory.used == 0

    assert first_status == 503  # a body at full speed is not dropped
    assert statuses == [200] * 5
    assert dropped.startswith(b"HTTP/1.1 503")
    assert responses == [b"HTTP/1.1 400"] * 3


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
def test_limits_apply_to_the_network_of_an_address(address: str, network: str) -> None:
    assert address_for_limits(address) == network


@pytest.mark.slow
def test_one_ipv6_network_is_one_address() -> None:
    """A /64 network has 2^64 addresses, so limits per address would have no effect."""
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
        pytest.skip(
            "A network namespace with IPv6 cannot be created on this machine (unshare -rn)."
        )
    completed = subprocess.run(
        [unshare, "-rn", "sh", "-c", script, "tests.support.ipv6_flood"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    counts = json.loads(completed.stdout)

    assert counts["before"] == 2 * MAX_PER_ADDRESS + 1
    assert counts["before"] < counts["flooded"] <= counts["before"] + MAX_PER_ADDRESS
    assert counts["num_subnets"] == 1


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
def test_the_host_of_an_absolute_target_is_checked(
    server: RunningServer, target: bytes, host: bytes, status: bytes
) -> None:
    """A proxy routes by the target, so a check of the Host header alone is not enough."""
    with connect(server) as connection:
        connection.sendall(
            b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n"
        )
        response = read_until_closed(connection)

    assert response.startswith(b"HTTP/1.1 " + status)


def test_a_path_has_no_host() -> None:
    assert host_of_target(b"/a?b=http://c/") is None
    assert host_of_target(b"http://c") == b"c"


@pytest.mark.parametrize(
    "parts",
    [
        [POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS, HIDDEN],
        [POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + CHUNKS, HIDDEN],
        [POST + b"Content-Length: 4\r\nContent-Length: 90\r\n\r\n" + CONTENT, HIDDEN],
        [POST + b"Content-Length: 4, 4\r\n\r\n" + CONTENT, HIDDEN],
        [POST + b"Content-Length: +4\r\n\r\n" + CONTENT, HIDDEN],
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
    """Proxies that derive the body length from another header forward such requests."""
    for sent in ([b"".join(parts)], parts):
        with connect(server) as connection:
            for part in sent:
                with contextlib.suppress(OSError):
                    connection.sendall(part)
            response = read_until_closed(connection)

        assert response.count(b"HTTP/1.1 ") <= 1
        assert b"HTTP/1.1 401" not in response


@pytest.mark.slow
def test_short_connections_from_many_addresses_delay_no_request(server: RunningServer) -> None:
    """Half of 2,000 connections in a second close fully, half close their sending side only."""

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

    latency_s = measure_latency(server, churn)
    server.wait_for(lambda: server.metrics()["sluice_connections"] <= 3)

    assert latency_s < 2.0
