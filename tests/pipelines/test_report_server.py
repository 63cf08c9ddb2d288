"""The report server reads one folder, for this machine, as long as its starter lives."""

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


def ask(
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


def test_the_first_page_lists_the_reports(port: int) -> None:
    status, content, reply = ask(port, "/")

    assert status == 200
    assert b"A page" in content
    assert b"A replay" in content
    assert b"secret" not in content
    assert reply.headers["Content-Type"] == "text/html; charset=utf-8"


def test_pages_folders_and_their_data_are_served(port: int) -> None:
    assert ask(port, "/page.html?x=1")[:2] == (200, b"<title>A page</title>")
    assert ask(port, "/replay/")[:2] == (200, b"<title>A replay</title>")
    assert ask(port, "/replay/data.json")[2].headers["Content-Type"].startswith("application/json")
    status, _, reply = ask(port, "//replay")
    assert (status, reply.headers["Location"]) == (301, "/replay/")


def test_a_page_may_reach_no_other_host(port: int) -> None:
    policy = ask(port, "/page.html")[2].headers["Content-Security-Policy"]

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
def test_nothing_outside_the_folder_is_served(port: int, path: str) -> None:
    status, content, _ = ask(port, path)

    assert status == 404
    assert b"secret" not in content.replace(path.encode(), b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_the_server_only_reads(port: int, folder: Path, method: str) -> None:
    assert ask(port, "/page.html", method=method)[0] == 501
    assert (folder / "page.html").exists()


def test_head_sends_no_content(port: int) -> None:
    status, content, reply = ask(port, "/page.html", method="HEAD")

    assert (status, content, reply.headers["Content-Length"]) == (200, b"", "21")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", ""])
def test_a_foreign_name_for_this_machine_is_refused(port: int, host: str) -> None:
    """A page of another site whose name was pointed here must not read the reports."""
    assert ask(port, "/page.html", host=host)[0] == 403


def test_a_taken_port_is_passed_over() -> None:
    with listen(0) as taken, listen(taken.getsockname()[1]) as other:
        assert other.getsockname()[0] == LOOPBACK
        assert other.getsockname()[1] != taken.getsockname()[1]


def test_the_port_of_the_ui_is_left_to_it() -> None:
    wanted = free_port()

    with listen(wanted, reserved_port=wanted) as other:
        assert other.getsockname()[1] != wanted


def test_beyond_the_last_port_any_will_do() -> None:
    with listen(65_536) as found:
        assert found.getsockname()[1] > 0


class Hurried(ReportServer):
    """The same with limits that a test can wait for."""

    limits = HttpLimits(threads=4, header_s=1.0, header_bytes=2048)


@pytest.fixture
def hurried(folder: Path) -> Iterator[int]:
    server = Hurried(listen(0), folder)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


def test_silent_connections_neither_pile_up_nor_keep_others_out(hurried: int) -> None:
    before = threading.active_count()
    silent = [socket.create_connection((LOOPBACK, hurried)) for _ in range(40)]

    assert ask(hurried, "/page.html")[0] == 200
    assert threading.active_count() <= before + Hurried.limits.threads
    for each in silent:
        each.settimeout(5)
        assert each.recv(1) == b""  # closed: the newest after header_s, the others for room
        each.close()


def test_a_header_that_trickles_is_cut_off(hurried: int) -> None:
    begun = time.monotonic()
    with socket.create_connection((LOOPBACK, hurried)) as slow:
        slow.sendall(b"GET /page.html HTTP/1.0\r\n")
        slow.settimeout(0.1)
        while time.monotonic() < begun + 10:
            try:
                slow.sendall(b"a")
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break

    assert time.monotonic() - begun < 3


@pytest.mark.parametrize(
    "header",
    [
        b"GET /page.html HTTP/1.0\r\n"
        + b"".join(b"a%d: %s\r\n" % (n, b"x" * 90) for n in range(90)),
        b"GET /page.html HTTP/1.0\r\na: " + b"x" * 9000 + b"\r\n",
        b"GET /" + b"x" * 9000 + b" HTTP/1.0\r\n",
    ],
)
def test_a_large_header_is_not_answered(
    hurried: int, header: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    said = b""
    with (
        socket.create_connection((LOOPBACK, hurried), timeout=5) as client,
        suppress(ConnectionError),
    ):
        client.sendall(header + b"Host: localhost\r\n\r\n")
        while part := client.recv(4096):
            said += part

    assert b"A page" not in said
    assert said == b"" or b" 431 " in said.splitlines()[0]
    assert ask(hurried, "/page.html")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_two_names_and_half_names_are_refused(port: int) -> None:
    assert ask(port, "/page.html", host="localhost@evil.example")[0] == 403
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
def test_the_server_ends_with_a_starter_that_was_killed(folder: Path) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", START, str(folder), str(free_port())],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert starter.stdout is not None
        port = int(starter.stdout.readline().decode().rsplit(":", 1)[1])
        assert ask(port, "/page.html")[0] == 200
    finally:
        os.kill(starter.pid, signal.SIGKILL)
        starter.communicate()

    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            ask(port, "/page.html")
        except OSError:
            return
        time.sleep(0.1)
    pytest.fail("the server outlived its starter")


@pytest.mark.parametrize(
    ("given", "first_port", "told"),
    [
        (None, 3001, "http://127.0.0.1:7"),
        ("http://localhost:4000", 4000, "http://127.0.0.1:7"),
        ("https://reports.example/x", 3001, "https://reports.example/x"),
    ],
)
def test_the_variable_names_the_port_or_a_proxy(
    given: str | None, first_port: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.base.home import Home
    from sluice.cli.orchestration import commands
    from sluice.pipelines import report_server

    asked = []

    def started(
        folder: Path, *, first_port: int, reserved_port: int, trusted_hosts: list[str]
    ) -> str:
        asked.append((folder, first_port, reserved_port, trusted_hosts))
        return "http://127.0.0.1:7"

    monkeypatch.setattr(report_server, "start_server", started)
    monkeypatch.setenv("SLUICE_REPORTS_URL", given or "")
    home = Home.from_environment({"SLUICE_HOME": str(tmp_path)}, cwd=tmp_path)

    assert (
        commands._serve_reports(home, port=4310, trusted_hosts=["ui.example"])
        == "http://127.0.0.1:7"
    )
    assert asked == [(home.reports, first_port, 4310, ["ui.example"])]
    assert os.environ["SLUICE_REPORTS_URL"] == told


def test_an_address_without_sense_is_the_users_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.base.home import Home
    from sluice.cli.orchestration import commands

    monkeypatch.setenv("SLUICE_REPORTS_URL", "http://localhost:99999")
    home = Home.from_environment({"SLUICE_HOME": str(tmp_path)}, cwd=tmp_path)

    with pytest.raises(SettingsError, match="SLUICE_REPORTS_URL must be an address"):
        commands._serve_reports(home, port=3000, trusted_hosts=[])
