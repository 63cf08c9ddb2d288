"""The UI guard refuses requests of foreign pages; tested on a real server with browser headers."""

import http.client
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from sluice.pipelines.trusted_hosts import is_trusted_host
from sluice.pipelines.ui_guard import UiGuard

JSON = {"Content-Type": "application/json"}
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
SERVED = b"from Dagster"


async def send_page(_: Request) -> PlainTextResponse:
    return PlainTextResponse(SERVED.decode())


async def send_text(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text(SERVED.decode())
    await websocket.close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Serve every request that the guard lets pass; return the port."""
    every = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    app = Starlette(
        routes=[
            WebSocketRoute("/graphql", send_text),
            Route("/{path:path}", send_page, methods=every),
        ]
    )
    guarded = UiGuard(app, trusted_hosts=["ui.example"])
    server = uvicorn.Server(
        uvicorn.Config(guarded, host="127.0.0.1", port=0, log_level="critical", lifespan="off")
    )
    socket = server.config.bind_socket()
    socket.listen()  # connections wait until the server is up
    thread = threading.Thread(target=server.run, args=([socket],))
    thread.start()
    yield socket.getsockname()[1]
    server.should_exit = True
    thread.join()
    socket.close()


def send_request(
    port: int, method: str, path: str, *headers: tuple[str, str], host: str | None = None
) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", f"127.0.0.1:{port}" if host is None else host)
    for name, value in headers:
        connection.putheader(name, value.format(port=port))
    connection.putheader("Content-Length", "2")
    connection.endheaders(b"{}")
    reply = connection.getresponse()
    content = reply.read()
    connection.close()
    return reply.status, content, reply.headers


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/graphql", JSON),
        ("POST", "/graphql", {"Content-Type": "application/json; charset=utf-8"}),
        (
            "POST",
            "/graphql",
            JSON | {"Origin": "http://127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin"},
        ),
        ("GET", "/runs", {}),
        ("GET", "/runs", LINK),
        ("HEAD", "/runs", {}),
        ("GET", "/runs", {"Sec-Fetch-Site": "none"}),
    ],
)
def test_programs_own_pages_and_links_are_served(
    port: int, method: str, path: str, headers: dict[str, str]
) -> None:
    status, content, sent = send_request(port, method, path, *headers.items())

    assert status == 200
    assert content == (b"" if method == "HEAD" else SERVED)
    assert sent["X-Frame-Options"] == "DENY"
    assert not [name for name in sent if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    ("status", "method", "path", "headers"),
    [
        # Mutations without a body, or with a content type that needs no CORS preflight.
        (405, "GET", "/graphql?query=mutation", {}),
        (405, "GET", "/graphql?query=mutation", {"Accept": "text/html"}),
        (405, "GET", "/graphql/?query=mutation", {}),
        (405, "GET", "/%67raphql?query=mutation", {}),
        (400, "GET", "/graphql%0a?query=mutation", {}),  # Dagster's route matches it
        (404, "GET", "/notebook?path=x.ipynb", LINK),
        (405, "HEAD", "/graphql?query=mutation", {}),
        (405, "OPTIONS", "/graphql", {"Origin": "http://127.0.0.1:{port}"}),
        (405, "PUT", "/graphql", JSON),
        (415, "POST", "/graphql?query=mutation", {}),
        (415, "POST", "/graphql", {"Content-Type": "text/plain"}),
        (415, "POST", "/graphql", {"Content-Type": "text/plain; application/json"}),
        (415, "POST", "/graphql", {"Content-Type": "application/x-www-form-urlencoded"}),
        (415, "POST", "/graphql", {"Content-Type": "multipart/form-data; boundary=x"}),
        (415, "POST", "/graphql", {"Content-Type": "application/graphql"}),
        (415, "POST", "/report_asset_materialization/a", {"Content-Type": "text/plain"}),
        # Requests of another page, also of one on another port of this machine.
        (403, "POST", "/graphql", JSON | {"Origin": "http://evil.example"}),
        (403, "POST", "/graphql", JSON | {"Origin": "null"}),
        (403, "POST", "/graphql", JSON | {"Origin": "http://127.0.0.1:1"}),
        (403, "POST", "/graphql", JSON | {"Origin": "http://localhost:{port}"}),
        (403, "POST", "/graphql", JSON | {"Origin": "http://127.0.0.1:{port}.evil.example"}),
        (403, "POST", "/graphql", JSON | {"Sec-Fetch-Site": "cross-site"}),
        (403, "POST", "/graphql", JSON | {"Sec-Fetch-Site": "same-site"}),
        (403, "POST", "/graphql", JSON | LINK),
        (403, "OPTIONS", "/graphql", {"Origin": "http://evil.example"}),
        # Reads by an embedding or fetching page, instead of a link.
        (403, "GET", "/logs/x", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}),
        (403, "GET", "/runs", LINK | {"Sec-Fetch-Dest": "iframe"}),
        (403, "GET", "/runs", {"Origin": "http://evil.example"}),
    ],
)
def test_requests_of_foreign_pages_are_refused(
    port: int, status: int, method: str, path: str, headers: dict[str, str]
) -> None:
    seen, content, sent = send_request(port, method, path, *headers.items())

    assert (seen, SERVED in content) == (status, False)
    assert not [name for name in sent if name.lower().startswith("access-control")]


def test_duplicate_headers_are_all_checked(port: int) -> None:
    own, foreign = "http://127.0.0.1:{port}", "http://evil.example"
    both = [("Origin", own), ("Origin", foreign)]
    kinds = [("Content-Type", "application/json"), ("Content-Type", "text/plain")]

    assert send_request(port, "POST", "/graphql", *JSON.items(), *both)[0] == 403
    assert send_request(port, "POST", "/graphql", *kinds)[0] == 415
    assert send_request(port, "GET", "/runs", ("Host", "evil.example"))[0] == 421


@pytest.mark.parametrize(
    ("host", "trusted"),
    [
        ("127.0.0.1", True),
        ("localhost:8080", True),
        ("LOCALHOST", True),
        ("ui.example:443", True),
        ("", False),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("localhost@evil.example", False),
        ("evil.example@localhost", False),
        ("localhost/", False),
        ("localhost:x", False),
        ("127.0.0.1.", False),
        ("[::ffff", False),
    ],
)
def test_only_loopback_and_named_hosts_are_trusted(host: str, trusted: bool) -> None:
    assert is_trusted_host(host, ["UI.example"]) is trusted


@pytest.mark.parametrize("host", ["evil.example", "ui.example.evil.example", ""])
def test_foreign_host_header_is_refused(port: int, host: str) -> None:
    status, content, _ = send_request(port, "GET", "/runs", host=host)

    assert (status, SERVED in content) == (421, False)
    assert b"--trusted-host NAME" in content


def test_trusted_proxy_is_served(port: int) -> None:
    origin = ("Origin", "https://ui.example")

    assert (
        send_request(port, "POST", "/graphql", *JSON.items(), origin, host="ui.example")[0] == 200
    )


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:1", "null"])
def test_websocket_connections_of_foreign_pages_are_refused(port: int, origin: str) -> None:
    url = f"ws://127.0.0.1:{port}/graphql"

    with connect(url, origin=f"http://127.0.0.1:{port}") as own:
        assert own.recv() == SERVED.decode()
    with pytest.raises(InvalidStatus) as refused, connect(url, origin=origin):
        pass
    assert refused.value.response.status_code == 403
