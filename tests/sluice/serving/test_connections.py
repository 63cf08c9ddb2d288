"""Floods, silent clients and slow clients do not affect other clients."""

import contextlib
import json
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.connection_settings import ConnectionSettings
from tests.sluice.serving.serving_samples import (
    SECRET,
    GatedNetwork,
    RunningServer,
    body,
    candidate,
    deployed,
    quick_settings,
    run_server,
)
from tests.support.descriptors import MAX_DESCRIPTORS

TOKEN = {"authorization": f"Bearer {SECRET}"}
ONE = TrafficSplit(epoch=1, production=candidate("one"))
LIMIT = 8
START = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
HEALTHY = START + b"\r\n"
CHUNKED = (
    f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {SECRET}\r\n"
    "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
).encode()


@pytest.fixture(scope="module")
def gated() -> GatedNetwork:
    return GatedNetwork(1.0)


@pytest.fixture(scope="module")
def server(gated: GatedNetwork) -> Iterator[RunningServer]:
    model = deployed("one", 1, gated)
    settings = quick_settings(
        connections=ConnectionSettings(
            max_connections=LIMIT,
            max_per_address=LIMIT // 2,
            header_timeout_s=0.4,
            idle_timeout_s=0.4,
            write_timeout_s=0.4,
        )
    )
    with run_server({model.candidate: model}, ONE, settings=settings) as running:
        yield running


def connect(server: RunningServer, source: str = "127.0.0.1") -> socket.socket:
    port = int(server.url.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(source, 0))


def read_until_closed(connection: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            received += part
    return received


def count_closed(server: RunningServer, reason: str) -> float:
    return server.metrics()[f'sluice_connections_closed_total{{reason="{reason}"}}']


@pytest.mark.parametrize(
    "sent",
    [
        START + b"X: " + b"a" * 40_000,
        START + b"X: " + b"a" * 40_000 + b"\r\n\r\n",
        START + b"a" * 40_000,
        b"GET /" + b"a" * 40_000,
        b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"".join([START, *(b"X-%d: 1\r\n" % n for n in range(101)), b"\r\n"]),
        b"".join([START, *(b"X-%d: %s\r\n" % (n, b"a" * 500) for n in range(90)), b"\r\n"]),
        b"\r\n" * 20_000 + START,
    ],
    ids=["open value", "value", "name", "open path", "path", "number", "sum", "empty lines"],
)
def test_a_header_beyond_a_limit_gets_431(server: RunningServer, sent: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(sent)
        response = read_until_closed(connection)

    assert response.startswith(b"HTTP/1.1 431 Request Header Fields Too Large")
    assert b"100 headers, and 32,768 bytes" in response


def test_a_flood_of_one_header_is_cut_off_without_delaying_others(server: RunningServer) -> None:
    """With a limit of 120 MiB, the latency of other requests rose from 11 ms to 11 s."""
    num_sent = 0

    def flood() -> None:
        nonlocal num_sent
        with connect(server, "127.0.0.2") as connection, contextlib.suppress(OSError):
            connection.sendall(START + b"X: ")
            for _ in range(240):
                connection.sendall(b"a" * 2**19)
                num_sent += 2**19

    flooding = threading.Thread(target=flood)
    flooding.start()
    seconds = []
    while flooding.is_alive() or len(seconds) < 10:
        began = time.monotonic()
        assert server.predict(1.0).status_code == 200
        seconds.append(time.monotonic() - began)
    flooding.join()

    assert num_sent < 40 * 2**20  # of 120 MiB, only the buffers of both ends are filled
    assert max(seconds) < 1.0


@pytest.mark.parametrize("trailer", [b"X: " + b"a" * 40_000, b"X: 1\r\n" * 101])
def test_trailers_count_as_headers(server: RunningServer, trailer: bytes) -> None:
    """Uvicorn adds trailers to the headers of a request that is already being handled."""
    before = count_closed(server, "header_large")
    with connect(server) as connection:
        connection.sendall(CHUNKED + b"1\r\n{\r\n0\r\n" + trailer + b"\r\n\r\n")
        read_until_closed(connection)

    assert count_closed(server, "header_large") == before + 1


def test_chunk_extensions_are_bounded(server: RunningServer) -> None:
    """The app does not see chunk extensions, so its body limit does not apply to them."""
    before = count_closed(server, "body_large")
    num_sent = 0
    with connect(server) as connection, contextlib.suppress(OSError):
        connection.sendall(CHUNKED + b"1;x=")
        for _ in range(200):
            connection.sendall(b"a" * 65_536)
            num_sent += 65_536

    assert num_sent < 200 * 65_536
    server.wait_for(lambda: count_closed(server, "body_large") == before + 1)


@pytest.mark.parametrize("first", [b"", HEALTHY], ids=["first", "further"])
def test_a_trickling_header_gets_408(server: RunningServer, first: bytes) -> None:
    began = time.monotonic()
    with connect(server) as connection:
        connection.sendall(first)
        connection.settimeout(0.05)
        response = b""
        for byte in b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 200:
            with contextlib.suppress(OSError):
                connection.sendall(bytes([byte]))
            with contextlib.suppress(TimeoutError):
                part = connection.recv(65536)
                response += part
                if not part:
                    break

    assert b"HTTP/1.1 408 Request Timeout" in response
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("bytes_sent", [b"", HEALTHY], ids=["silent", "idle"])
def test_an_idle_connection_is_closed_without_a_response(
    server: RunningServer, bytes_sent: bytes
) -> None:
    with connect(server) as connection:
        connection.sendall(bytes_sent)
        num_responses = read_until_closed(connection).count(b"HTTP/1.1")

    assert num_responses == (1 if bytes_sent else 0)


def count_descriptions(server: RunningServer) -> float:
    """Return how many responses of /openapi.json were sent."""
    name = 'sluice_http_requests_total{method="GET",route="/openapi.json",status="200"}'
    return server.metrics().get(name, 0)


@pytest.mark.slow
def test_a_client_that_does_not_read_is_disconnected(server: RunningServer) -> None:
    before, sent = count_closed(server, "unread"), count_descriptions(server)
    request = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    # The server resets the connection, which the next request may notice first.
    with connect(server) as connection, contextlib.suppress(ConnectionError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        while sent < 2000 and count_closed(server, "unread") == before:
            if (
                sent - count_descriptions(server) < 8
            ):  # more would exceed the limit of pipelined requests
                connection.sendall(request)
                sent += 1

    assert count_closed(server, "unread") == before + 1


def test_pipelined_requests_are_bounded(server: RunningServer, gated: GatedNetwork) -> None:
    before = count_closed(server, "pipelined")
    content = json.dumps(body(1.0)).encode()
    request = (
        CHUNKED.replace(b"Transfer-Encoding: chunked", b"Content-Length: %d" % len(content))
        + content
    )
    gated.gate.clear()
    try:
        with connect(server) as connection:
            connection.sendall(request * 20)
            read_until_closed(connection)
    finally:
        gated.gate.set()

    assert count_closed(server, "pipelined") == before + 1


def test_silent_connections_beyond_the_limit_are_evicted(server: RunningServer) -> None:
    """Otherwise 1,100 of them make a server with 1,024 file descriptors unreachable."""
    with contextlib.ExitStack() as stack:
        for number in range(4 * LIMIT):
            source = f"127.0.0.{2 + number % 3}"
            stack.enter_context(connect(server, source)).sendall(b"GET")
            if number % 4 == 0:
                with httpx.Client(base_url=server.url) as new:
                    assert new.get("/healthz").status_code == 200
        assert server.metrics()["sluice_connections"] <= LIMIT


def test_slow_bodies_beyond_the_limit_are_evicted(server: RunningServer) -> None:
    """Otherwise a client with a token can occupy all connections."""
    with contextlib.ExitStack() as stack:
        for number in range(2 * LIMIT):
            source = f"127.0.0.{2 + number % 3}"
            stack.enter_context(connect(server, source)).sendall(CHUNKED)
        for _ in range(LIMIT):
            assert httpx.post(f"{server.url}/predict", json=body(1.0), headers=TOKEN).is_success


def test_one_address_cannot_evict_other_addresses(server: RunningServer) -> None:
    with connect(server, "127.0.0.9") as idle, contextlib.ExitStack() as stack:
        idle.sendall(HEALTHY)
        idle.recv(65536)
        for _ in range(3 * LIMIT):
            stack.enter_context(connect(server, "127.0.0.2"))
        idle.sendall(HEALTHY)

        assert idle.recv(65536).startswith(b"HTTP/1.1 200")


def test_complete_requests_are_not_evicted(server: RunningServer, gated: GatedNetwork) -> None:
    gated.gate.clear()
    try:
        with ThreadPoolExecutor(LIMIT // 2) as pool:
            futures = [
                pool.submit(httpx.post, f"{server.url}/predict", json=body(1.0), headers=TOKEN)
                for _ in range(LIMIT // 2)
            ]
            server.wait_for(lambda: server.serving.admission.num_predicting == LIMIT // 2)
            with connect(server) as connection:
                refused = read_until_closed(connection)
            gated.gate.set()
            statuses = [future.result().status_code for future in futures]
    finally:
        gated.gate.set()

    assert refused.startswith(b"HTTP/1.1 503 Service Unavailable")
    assert b'"kind":"busy"' in refused
    assert statuses == [200] * (LIMIT // 2)


def test_the_address_limit_is_at_most_the_connection_limit() -> None:
    with pytest.raises(ValueError, match="at most max_connections, got 9 and 8"):
        ConnectionSettings(max_connections=8, max_per_address=9)


@pytest.mark.slow
def test_clients_cannot_exhaust_the_file_descriptors_of_the_registry(tmp_path: Path) -> None:
    """With more connections than file descriptors, the server predicts and opens the registry."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft > 3 * MAX_DESCRIPTORS, (
        f"this test opens {2 * MAX_DESCRIPTORS} sockets, see ulimit -n"
    )
    with (
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.descriptors", str(tmp_path / "registry.db")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(process.kill)
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        for _ in range(2 * MAX_DESCRIPTORS):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        process.stdin.write("open\n")
        process.stdin.flush()
        output = process.stdout.readline()
        url = f"http://127.0.0.1:{port}/predict"
        response = httpx.post(url, json=body(1.0), headers=TOKEN, timeout=10)
        process.stdin.close()

    assert hard >= soft
    assert output == "opened 20\n"
    assert response.status_code == 200
