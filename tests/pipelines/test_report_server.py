"""The report server serves one folder on the loopback and ends with the process that started it."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sluice.base.errors import SettingsError
from sluice.pipelines.bounded_http import HttpLimits
from sluice.pipelines.report_server import LOOPBACK, ReportServer, listen


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    reports = tmp_path / "reports"
    (reports / "replay").mkdir(parents=True)
    (reports / "page.html").write_text("<title>A page</title>")
    (reports / "replay" / "index.html").write_text("<title>A replay</title>")
    (reports / "replay" / "data.json").write_text("{}")
    (reports / ".hidden.html").write_text("secret")
    (tmp_path / "secret.html").write_text("secret")
    (reports / "link.html").symlink_to(tmp_path / "secret.html")
    (reports / "way").symlink_to(tmp_path)
    return reports


@pytest.fixture
def port(folder: Path) -> Iterator[int]:
    server = ReportServer(listen(0), folder)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


def send_request(
    port: int, path: str, *, method: str = "GET", host: str | None = None
) -> tuple[int, bytes, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=5)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host if host is not None else f"{LOOPBACK}:{port}")
    connection.endheaders()
    reply = connection.getresponse()
    content = reply.read()
    connection.close()
    return reply.status, content, reply


def test_index_page_lists_the_reports(port: int) -> None:
    status, content, reply = send_request(port, "/")

    assert status == 200
    assert b"A page" in content
    assert b"A replay" in content
    assert b"secret" not in content
    assert reply.headers["Content-Type"] == "text/html; charset=utf-8"


def test_pages_folders_and_data_files_are_served(port: int) -> None:
    assert send_request(port, "/page.html?x=1")[:2] == (200, b"<title>A page</title>")
    assert send_request(port, "/replay/")[:2] == (200, b"<title>A replay</title>")
    assert (
        send_request(port, "/replay/data.json")[2]
        .headers["Content-Type"]
        .startswith("application/json")
    )
    status, _, reply = send_request(port, "//replay")
    assert (status, reply.headers["Location"]) == (301, "/replay/")


def test_content_security_policy_allows_no_other_host(port: int) -> None:
    policy = send_request(port, "/page.html")[2].headers["Content-Security-Policy"]

    assert policy.startswith("default-src 'self'")
    assert "http" not in policy


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.html",
        "/%2e%2e/secret.html",
        "/replay/../../secret.html",
        "/replay/..%2f..%2fsecret.html",
        "/..\\secret.html",
        "/.hidden.html",
        "/link.html",
        "/way/secret.html",
        "/page.html%00.txt",
        "//etc/passwd",
        "/way",
        "/nothing.html",
        "/" + "x" * 5000,
    ],
)
def test_hidden_files_and_files_outside_the_folder_are_not_served(port: int, path: str) -> None:
    status, content, _ = send_request(port, path)

    assert status == 404
    assert b"secret" not in content.replace(path.encode(), b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_write_methods_are_refused(port: int, folder: Path, method: str) -> None:
    assert send_request(port, "/page.html", method=method)[0] == 501
    assert (folder / "page.html").exists()


def test_head_response_has_no_content(port: int) -> None:
    status, content, reply = send_request(port, "/page.html", method="HEAD")

    assert (status, content, reply.headers["Content-Length"]) == (200, b"", "21")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", ""])
def test_foreign_host_header_is_refused(port: int, host: str) -> None:
    """Protects the reports from DNS rebinding: a foreign name that resolves to this machine."""
    assert send_request(port, "/page.html", host=host)[0] == 403


def test_taken_port_is_skipped() -> None:
    with listen(0) as taken, listen(taken.getsockname()[1]) as other:
        assert other.getsockname()[0] == LOOPBACK
        assert other.getsockname()[1] != taken.getsockname()[1]


def test_reserved_port_is_skipped() -> None:
    wanted = free_port()

    with listen(wanted, reserved_port=wanted) as other:
        assert other.getsockname()[1] != wanted


def test_port_above_the_maximum_selects_a_free_port() -> None:
    with listen(65_536) as found:
        assert found.getsockname()[1] > 0


class ServerWithLowLimits(ReportServer):
    """A report server with limits low enough for a test."""

    limits = HttpLimits(max_threads=4, max_header_s=1.0, max_header_bytes=2048)


@pytest.fixture
def low_limits_port(folder: Path) -> Iterator[int]:
    server = ServerWithLowLimits(listen(0), folder)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


def test_silent_connections_are_closed_and_do_not_block_other_requests(
    low_limits_port: int,
) -> None:
    before = threading.active_count()
    silent = [socket.create_connection((LOOPBACK, low_limits_port)) for _ in range(40)]

    assert send_request(low_limits_port, "/page.html")[0] == 200
    assert threading.active_count() <= before + ServerWithLowLimits.limits.max_threads
    for each in silent:
        each.settimeout(5)
        # The newest is closed after max_header_s; the others are closed to free threads.
        assert each.recv(1) == b""
        each.close()


def test_slow_header_is_cut_off(low_limits_port: int) -> None:
    started = time.monotonic()
    with socket.create_connection((LOOPBACK, low_limits_port)) as slow:
        slow.sendall(b"GET /page.html HTTP/1.0\r\n")
        slow.settimeout(0.1)
        while time.monotonic() < started + 10:
            try:
                slow.sendall(b"a")
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break

    assert time.monotonic() - started < 3


@pytest.mark.parametrize(
    "header",
    [
        b"GET /page.html HTTP/1.0\r\n"
        + b"".join(b"a%d: %s\r\n" % (n, b"x" * 90) for n in range(90)),
        b"GET /page.html HTTP/1.0\r\na: " + b"x" * 9000 + b"\r\n",
        b"GET /" + b"x" * 9000 + b" HTTP/1.0\r\n",
    ],
)
def test_large_header_is_rejected(
    low_limits_port: int, header: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    response = b""
    with (
        socket.create_connection((LOOPBACK, low_limits_port), timeout=5) as client,
        suppress(ConnectionError),
    ):
        client.sendall(header + b"Host: localhost\r\n\r\n")
        while part := client.recv(4096):
            response += part

    assert b"A page" not in response
    assert response == b"" or b" 431 " in response.splitlines()[0]
    assert send_request(low_limits_port, "/page.html")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_duplicate_and_malformed_host_headers_are_refused(port: int) -> None:
    assert send_request(port, "/page.html", host="localhost@evil.example")[0] == 403
    with socket.create_connection((LOOPBACK, port), timeout=5) as client:
        client.sendall(b"GET /page.html HTTP/1.0\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert b" 403 " in client.recv(200)


START = """
import sys, time
from pathlib import Path
from sluice.pipelines.bounded_http import HttpLimits
from sluice.pipelines.report_server import start_server
print(start_server(Path(sys.argv[1]), first_port=int(sys.argv[2])), flush=True)
time.sleep(60)
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        return int(free.getsockname()[1])


@pytest.mark.slow
def test_server_ends_when_its_parent_process_is_killed(folder: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", START, str(folder), str(free_port())],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert parent.stdout is not None
        port = int(parent.stdout.readline().decode().rsplit(":", 1)[1])
        assert send_request(port, "/page.html")[0] == 200
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.communicate()

    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            send_request(port, "/page.html")
        except OSError:
            return
        time.sleep(0.1)
    pytest.fail("the server outlived its parent process")


@pytest.mark.parametrize(
    ("variable", "first_port", "expected"),
    [
        (None, 3001, "http://127.0.0.1:7"),
        ("http://localhost:4000", 4000, "http://127.0.0.1:7"),
        ("https://reports.example/x", 3001, "https://reports.example/x"),
    ],
)
def test_reports_url_variable_sets_the_port_or_a_proxy(
    variable: str | None,
    first_port: int,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sluice.base.home import Home
    from sluice.cli.orchestration import commands
    from sluice.pipelines import report_server

    calls = []

    def fake_start_server(
        folder: Path, *, first_port: int, reserved_port: int, trusted_hosts: list[str]
    ) -> str:
        calls.append((folder, first_port, reserved_port, trusted_hosts))
        return "http://127.0.0.1:7"

    monkeypatch.setattr(report_server, "start_server", fake_start_server)
    monkeypatch.setenv("SLUICE_REPORTS_URL", variable or "")
    home = Home.from_environment({"SLUICE_HOME": str(tmp_path)}, cwd=tmp_path)

    assert (
        commands._serve_reports(home, port=4310, trusted_hosts=["ui.example"])
        == "http://127.0.0.1:7"
    )
    assert calls == [(home.reports, first_port, 4310, ["ui.example"])]
    assert os.environ["SLUICE_REPORTS_URL"] == expected


def test_invalid_reports_url_is_a_settings_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.base.home import Home
    from sluice.cli.orchestration import commands

    monkeypatch.setenv("SLUICE_REPORTS_URL", "http://localhost:99999")
    home = Home.from_environment({"SLUICE_HOME": str(tmp_path)}, cwd=tmp_path)

    with pytest.raises(SettingsError, match="SLUICE_REPORTS_URL must be an address"):
        commands._serve_reports(home, port=3000, trusted_hosts=[])
