"""Serves the pages under ``SLUICE_HOME/reports``, and metrics, on loopback.

Clients can only read, within the limits of ``bounded_http``. Neither dotfiles nor files outside the
folder are served. The server ends with the process that started it, even if that process is killed.
The page ``/`` lists the ``*.html`` files of the folder, and its folders with an ``index.html``.
``/metrics`` has the Prometheus metrics of pipelines and rollouts.
"""

import argparse
import mimetypes
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from sluice.base.home import Home
from sluice.pipelines.bounded_http import BoundedHandler, BoundedServer
from sluice.pipelines.pipeline_metrics import MEDIA_TYPE, metrics_reader
from sluice.pipelines.trusted_hosts import is_trusted_host
from sluice.reports.index import index_page

LOOPBACK = "127.0.0.1"
_CONTENT_SECURITY_POLICY = (
    "default-src 'self' 'unsafe-inline' data: blob:; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'self'"
)
"""Content security policy: a page may run its own scripts. It cannot reach other hosts, send forms
to the UI, or be shown in a frame of another origin."""

_NUM_PREFERRED_PORTS = 20
_PARENT_POLL_S = 0.5


class ReportServer(BoundedServer):
    """Serves one folder on an open loopback socket."""

    def __init__(
        self,
        listener: socket.socket,
        folder: Path,
        metrics: Callable[[], bytes] | None = None,
        *,
        trusted_hosts: Iterable[str] = (),
    ) -> None:
        super().__init__(listener.getsockname(), ReportHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_activate()
        self.folder = folder.resolve()
        self.metrics = metrics
        self.trusted_hosts = tuple(trusted_hosts)


class ReportHandler(BoundedHandler):
    """Handles one request; only GET and HEAD are supported."""

    server: ReportServer
    server_version = "sluice"
    sys_version = ""

    def do_GET(self) -> None:
        """Send a page with its content."""
        self._respond(with_content=True)

    def do_HEAD(self) -> None:
        """Send the headers of the response to GET."""
        self._respond(with_content=False)

    def log_message(self, *_: object) -> None:
        """Log nothing: the terminal is used by Dagster."""

    def _respond(self, *, with_content: bool) -> None:
        url_path = urlsplit(self.path).path
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not is_trusted_host(hosts[0], self.server.trusted_hosts):
            self.send_error(HTTPStatus.FORBIDDEN, "The Host header must name this machine")
            return
        if url_path == "/":
            page = index_page(self.server.folder).encode()
            self._send(page, content_type="text/html; charset=utf-8", with_content=with_content)
            return
        if url_path == "/metrics" and self.server.metrics is not None:
            self._send(self.server.metrics(), content_type=MEDIA_TYPE, with_content=with_content)
            return
        file = find_file(self.server.folder, url_path)
        if file is None:
            self.send_error(HTTPStatus.NOT_FOUND, "No such report")
        elif file.name == "index.html" and not url_path.endswith(("/", ".html")):
            # The redirection adds a slash, so that relative links work.
            self.send_response(HTTPStatus.MOVED_PERMANENTLY)
            relative_path = file.parent.relative_to(self.server.folder).as_posix()
            self.send_header("Location", f"/{quote(relative_path)}/")
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._send_file(file, with_content=with_content)

    def _send(self, content: bytes, *, content_type: str, with_content: bool) -> None:
        self._send_headers(content_type, len(content))
        if with_content:
            self.wfile.write(content)

    def _send_file(self, path: Path, *, with_content: bool) -> None:
        try:
            file = path.open("rb")
        except OSError:
            self.send_error(HTTPStatus.NOT_FOUND, "No such report")
            return
        with file:
            content_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            is_text = content_type.startswith("text/") or content_type == "application/json"
            self._send_headers(
                f"{content_type}; charset=utf-8" if is_text else content_type,
                os.fstat(file.fileno()).st_size,
            )
            if with_content:
                shutil.copyfileobj(file, self.wfile)

    def _send_headers(self, content_type: str, size: int) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(size))
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Content-Security-Policy", _CONTENT_SECURITY_POLICY)
        self.send_header(
            "Cross-Origin-Resource-Policy", "same-origin"
        )  # not embeddable in other pages
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()


def find_file(folder: Path, url_path: str) -> Path | None:
    """Return the file of a URL path; None if it does not exist inside ``folder``.

    For a folder, its ``index.html`` is returned. Links are resolved before the path is checked.
    """
    parts = [part for part in unquote(url_path).split("/") if part]
    if any(part.startswith(".") or "\0" in part or "\\" in part for part in parts):
        return None
    try:
        file = folder.joinpath(*parts).resolve()
        if file.is_dir():
            file = (file / "index.html").resolve()
        is_inside = file.is_relative_to(folder.resolve()) and file.is_file()
    except OSError:  # such as a name that is too long
        return None
    return file if is_inside else None


def listen(first_port: int, *, reserved_port: int | None = None) -> socket.socket:
    """Listen on a free loopback port: the first of 20 from ``first_port`` on, or else any.

    Args:
        first_port: The preferred port.
        reserved_port: A port that another service is about to open, which is skipped.
    """
    for port in _ports_to_try(first_port):
        if port == reserved_port:
            continue
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
            listener.listen()  # a socket that is only bound does not reserve the port
        except OSError:
            listener.close()
        else:
            return listener
    raise AssertionError("the system assigns a free port for 0")


def _ports_to_try(first_port: int) -> Iterator[int]:
    yield from range(first_port, min(first_port + _NUM_PREFERRED_PORTS, 65_536))
    yield 0


def start_server(
    folder: Path,
    *,
    first_port: int,
    reserved_port: int | None = None,
    trusted_hosts: Sequence[str] = (),
) -> str:
    """Serve ``folder`` from a child process that ends with this process; return the address.

    The port is chosen as in ``listen``. This process may replace itself by ``exec``, because the
    child recognises it by its process id, which does not change.
    """
    with listen(first_port, reserved_port=reserved_port) as listener:
        command = [sys.executable, "-P", "-m", "sluice.pipelines.report_server"]
        subprocess.Popen(
            [*command, str(folder), str(listener.fileno()), str(os.getpid()), *trusted_hosts],
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # readers of an inherited pipe would wait for the server
        )
        return f"http://{LOOPBACK}:{listener.getsockname()[1]}"


def wait_for_parent_end(parent_pid: int) -> None:
    """Wait until this process is no longer a child of the process ``parent_pid``."""
    while os.getppid() == parent_pid:
        time.sleep(_PARENT_POLL_S)


def main() -> None:
    """Serve until the parent ends. Usage: ``report_server FOLDER SOCKET PARENT [HOST ...]``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("listener", type=int, help="descriptor of the bound socket")
    parser.add_argument(
        "parent", type=int, help="id of the parent process; this process ends after it"
    )
    parser.add_argument("trusted_hosts", nargs="*", help="host names besides loopback")
    arguments = parser.parse_args()
    home = Home.from_environment(os.environ, cwd=Path.cwd())
    listener = socket.socket(fileno=arguments.listener)
    server = ReportServer(
        listener, arguments.folder, metrics_reader(home), trusted_hosts=arguments.trusted_hosts
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        wait_for_parent_end(arguments.parent)
    except KeyboardInterrupt:  # Ctrl-C is sent to the whole process group
        sys.exit(0)


if __name__ == "__main__":
    main()
