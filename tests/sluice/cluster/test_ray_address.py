"""An address at which no cluster answers is refused within seconds, whatever answers there."""

import contextlib
import http.server
import socket
import threading
import time

import pytest

from sluice.base.errors import SettingsError
from sluice.cluster import ray_address
from sluice.cluster.ray_address import require_cluster


@contextlib.contextmanager
def web_page():
    """As Ray's dashboard."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    server.RequestHandlerClass.log_message = lambda *_: None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def silence():
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextlib.contextmanager
def other_service():
    """Speaks Ray's protocol and serves something else, as the port for 'ray://' does."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize("answering", [web_page, silence, other_service])
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_what_answers_and_is_not_ray_is_refused(answering, scheme, monkeypatch):
    """Ray itself hangs for minutes."""
    monkeypatch.setattr(ray_address, "_CONNECT_TIMEOUT_S", 1.0)
    started = time.monotonic()
    with answering() as port, pytest.raises(SettingsError, match="is not a Ray head node"):
        require_cluster(f"{scheme}127.0.0.1:{port}")
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("address", [None, "auto"])
def test_addresses_that_ray_resolves_are_not_checked(address, monkeypatch):
    asked = []
    monkeypatch.setattr("socket.create_connection", lambda *where, **_: asked.append(where))

    require_cluster(address)

    assert asked == []


@pytest.mark.slow
def test_a_cluster_is_let_through(cluster):
    require_cluster(cluster.address)
    started = time.monotonic()
    with pytest.raises(SettingsError, match="is not a Ray head node"):
        require_cluster(f"ray://{cluster.address}")
    assert time.monotonic() - started < 60
