"""Clients with one token cannot use all memory, slots and request rate of the server."""

import contextlib
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.admission import Admission, FairShare
from sluice.serving.http_errors import Overloaded, TooManyRequests
from sluice.serving.settings import ServingSettings
from sluice.serving.tokens import Grant, Tokens, digest_token
from tests.sluice.serving.serving_samples import (
    GatedNetwork,
    RunningServer,
    body,
    candidate,
    deployed,
    quick_settings,
    run_server,
)

SECRETS = {"greedy": "greedy-" + "g" * 16, "modest": "modest-" + "m" * 16}
NUM_SLOTS = 8


def grant(name: str, per_s: float | None = None) -> Grant:
    return Grant(
        name=name,
        digest=digest_token(SECRETS.get(name, name + "x" * 16)),
        scopes=frozenset(("predict", "metrics")),
        requests_per_s=per_s,
    )


BOTH = Tokens((grant("greedy"), grant("modest")))


def take_all(share: FairShare, holder: str, *, is_shared: bool) -> int:
    count = 0
    while share.take(holder, 1, is_shared=is_shared):
        count += 1
    return count


def test_a_single_token_gets_the_whole_capacity() -> None:
    assert take_all(FairShare(100), "one", is_shared=False) == 100


def test_each_of_several_tokens_gets_half_of_the_free_capacity() -> None:
    share = FairShare(90)
    first = take_all(share, "a", is_shared=True)
    second = take_all(share, "b", is_shared=True)

    assert (first, second) == (45, 22)
    assert take_all(share, "c", is_shared=True) == 11


def test_the_last_slot_goes_to_the_token_without_one() -> None:
    share = FairShare(1)

    assert share.take("a", 1, is_shared=True)
    assert not share.take("b", 1, is_shared=True)
    share.give_back("a", 1)
    assert share.take("b", 1, is_shared=True)


def count_admitted(admission: Admission, holder: str) -> int:
    count = 0
    with contextlib.suppress(TooManyRequests):
        while count < 1000:
            admission.require_rate(holder)
            count += 1
    return count


def test_tokens_without_their_own_rate_share_the_rate_of_the_server() -> None:
    settings = ServingSettings(requests_per_s=1e-3, burst_requests=100)
    tokens = Tokens((grant("a"), grant("b"), grant("c", 1e-4), grant("d", 2e-3)))
    admission = Admission(settings, tokens)

    assert [count_admitted(admission, name) for name in "abcd"] == [25, 25, 10, 200]


def test_a_token_change_keeps_the_used_part_of_a_burst() -> None:
    settings = ServingSettings(requests_per_s=1e-3, burst_requests=100)
    admission = Admission(settings, Tokens((grant("a", 1e-4), grant("b"))))
    first = count_admitted(admission, "a")
    admission.set_tokens(Tokens((grant("a", 1e-4), grant("c"))))
    again = count_admitted(admission, "a")
    admission.set_tokens(Tokens((grant("a", 2e-4), grant("c"))))

    assert (first, again, count_admitted(admission, "a")) == (10, 0, 20)


def test_bodies_reserve_memory_while_they_arrive_and_release_it() -> None:
    admission = Admission(quick_settings(max_body_memory_bytes=400_000), BOTH)
    with contextlib.ExitStack() as stack:
        for _ in range(3):  # each 64 KiB at least
            stack.enter_context(admission.reserve_body_memory("greedy"))
        with pytest.raises(Overloaded, match="the bodies with this token use the share"):
            stack.enter_context(admission.reserve_body_memory("greedy"))
        other = stack.enter_context(admission.reserve_body_memory("modest"))
        other.grow(100_000)
    with admission.reserve_body_memory("greedy") as reading:
        reading.grow(200_000)
        with pytest.raises(Overloaded):
            reading.grow(1)


@pytest.fixture
def gated() -> GatedNetwork:
    return GatedNetwork(1.0)


@contextlib.contextmanager
def run_gated(gated: GatedNetwork, **limits: float) -> Iterator[RunningServer]:
    model = deployed("one", 1, gated)
    settings = quick_settings(max_in_flight=NUM_SLOTS, deadline_s=5.0, **limits)
    split = TrafficSplit(epoch=1, production=candidate("one"))
    with run_server({model.candidate: model}, split, settings=settings, tokens=BOTH) as running:
        running.client.headers["authorization"] = f"Bearer {SECRETS['modest']}"
        yield running


@pytest.fixture
def server(gated: GatedNetwork) -> Iterator[RunningServer]:
    with run_gated(gated, body_timeout_s=5.0, body_grace_s=0.3) as running:
        yield running


def send_slow_body(server: RunningServer, secret: str) -> socket.socket:
    port = int(server.url.rpartition(":")[2])
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.sendall(
        f"POST /predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n"
        "Content-Type: application/json\r\nContent-Length: 9000\r\n\r\n{".encode()
    )
    return connection


@pytest.mark.parametrize("name", ["greedy", "modest"])
def test_slow_bodies_occupy_no_slots(gated: GatedNetwork, name: str) -> None:
    """Otherwise 260 of them occupy all 256 slots, and other clients get 503 for ten seconds."""
    with run_gated(gated, body_timeout_s=60.0, body_grace_s=60.0) as server:
        before = server.metrics()["sluice_connections"]
        with contextlib.ExitStack() as stack:
            for _ in range(4 * NUM_SLOTS):
                stack.enter_context(send_slow_body(server, SECRETS[name]))
            num_connections = before + 4 * NUM_SLOTS
            server.wait_for(lambda: server.metrics()["sluice_connections"] == num_connections)

            assert server.predict(1.0).status_code == 200


def test_a_trickling_body_is_refused_before_its_timeout(server: RunningServer) -> None:
    """Otherwise an occasional byte keeps the connection open for body_timeout_s."""
    with send_slow_body(server, SECRETS["greedy"]) as connection:
        connection.settimeout(0.05)
        response = b""
        for _ in range(30):
            with contextlib.suppress(TimeoutError, BrokenPipeError):
                connection.sendall(b" ")
                response = connection.recv(65536)
                break

    assert response.startswith(b"HTTP/1.1 408 Request Timeout")
    assert b"at 1,024 bytes/s or more" in response


def test_a_slow_but_steady_body_is_accepted(server: RunningServer) -> None:
    with send_slow_body(server, SECRETS["greedy"]) as connection:
        for _ in range(8):
            connection.sendall(b" " * 1000)
            with contextlib.suppress(TimeoutError):
                connection.settimeout(0.1)
                connection.recv(1)
                raise AssertionError("the response came before the end of the body")
        connection.settimeout(10)
        connection.sendall(b" " * 999)

        assert connection.recv(65536).startswith(
            b"HTTP/1.1 400"
        )  # the body is complete and is not JSON


def test_one_token_leaves_slots_for_others(server: RunningServer, gated: GatedNetwork) -> None:
    def ask(name: str) -> int:
        headers = {"authorization": f"Bearer {SECRETS[name]}"}
        response = httpx.post(f"{server.url}/predict", json=body(1.0), headers=headers, timeout=10)
        return response.status_code

    gated.gate.clear()
    with ThreadPoolExecutor(2 * NUM_SLOTS) as pool:
        greedy = [pool.submit(ask, "greedy") for _ in range(NUM_SLOTS)]
        server.wait_for(lambda: sum(future.done() for future in greedy) == NUM_SLOTS // 2)
        modest = [pool.submit(ask, "modest") for _ in range(2)]
        server.wait_for(lambda: server.serving.admission.num_predicting == NUM_SLOTS // 2 + 2)
        gated.gate.set()

    assert sorted(future.result() for future in greedy) == [200] * (NUM_SLOTS // 2) + [503] * (
        NUM_SLOTS // 2
    )
    assert [future.result() for future in modest] == [200, 200]
