"""An address without a Ray cluster is refused within seconds, whatever service listens there."""

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
def web_server():
    """Port of a web server, such as Ray's dashboard."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    server.RequestHandlerClass.log_message = lambda *_: None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def silent_server():
    """Port that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextlib.contextmanager
def other_service():
    """Port of another gRPC service, such as that of 'ray://'."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize("service", [web_server, silent_server, other_service])
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_service_that_is_not_ray_is_refused(service, scheme, monkeypatch):
    """Without the check, Ray hangs for minutes."""
    monkeypatch.setattr(ray_address, "_CONNECT_TIMEOUT_S", 1.0)
    started = time.monotonic()
    with service() as port, pytest.raises(SettingsError, match="is not a Ray head node"):
        require_cluster(f"{scheme}127.0.0.1:{port}")
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("address", [None, "auto"])
def test_addresses_that_ray_resolves_are_not_checked(address, monkeypatch):
    connections = []
    monkeypatch.setattr("socket.create_connection", lambda *where, **_: connections.append(where))

    require_cluster(address)

    assert connections == []


@pytest.mark.slow
def test_only_the_plain_address_of_a_cluster_is_accepted(cluster):
    require_cluster(cluster.address)
    started = time.monotonic()
    with pytest.raises(SettingsError, match="is not a Ray head node"):
        require_cluster(f"ray://{cluster.address}")
    assert time.monotonic() - started < 60
