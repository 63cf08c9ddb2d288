"""Attacks on ``sluice dev`` by files in its working folder and by requests of foreign pages."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from sluice.base.errors import SettingsError
from sluice.base.home import Home
from sluice.pipelines.instance import open_instance
from sluice.pipelines.report_server import ReportServer, listen

ROOT = Path(__file__).parents[2]
CHROMIUM = Path("/usr/bin/chromium")
MUTATION = quote("mutation { setNuxSeen }")
PLANTED = (
    *("sitecustomize", "usercustomize", "random", "nbformat", "numexpr", "bottleneck", "cupy"),
    *("lz4", "gmpy2"),  # not installed, but installed packages try to import them
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dev:
    """A running ``sluice dev``, started with umask 0 in a folder with planted files."""

    port: int
    pid: int
    folder: Path

    @property
    def executed(self) -> str:
        """Return the paths of planted files that were executed."""
        return read_executed(self.folder)

    @property
    def other_home_files(self) -> list[str]:
        """Return the files that Dagster wrote to the home that the planted ``.env`` names."""
        planted = {f"{name}.py" for name in PLANTED} | {"dagster.yaml"}
        return [path.name for path in (self.folder / "other").iterdir() if path.name not in planted]


def read_executed(folder: Path) -> str:
    mark = folder / "executed"
    return mark.read_text() if mark.exists() else ""


def plant(folder: Path) -> None:
    """Write files that record their execution to every path that a program might read."""
    mark = folder / "executed"
    code = f"open({str(mark)!r}, 'a').write(__file__ + ' ')\n"
    state, other = folder / ".sluice" / "dagster", folder / "other"
    for target in (folder, state, other):
        target.mkdir(parents=True, exist_ok=True)
        for name in PLANTED:
            (target / f"{name}.py").write_text(code)
    (other / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    (folder / ".env").write_text(f"DAGSTER_HOME={other}\nPYTHONPATH={other}\n")


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    folder = tmp_path_factory.mktemp("downloaded")
    plant(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "DAGSTER_"))}
    stderr = (folder / "stderr").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "sluice", "dev", "--port", str(port)],
        cwd=folder,
        env=environ | {"PYTHONPATH": str(ROOT)},
        umask=0,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
    )
    stderr.close()
    found = Dev(port=port, pid=process.pid, folder=folder)
    try:
        deadline = time.monotonic() + 120
        while not is_up(found):
            assert process.poll() is None, (folder / "stderr").read_text()
            assert time.monotonic() < deadline, (folder / "stderr").read_text()
            time.sleep(0.2)
        yield found
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def is_up(dev: Dev) -> bool:
    """Return whether the UI responds and Dagster's daemon has started all its threads."""
    try:
        if send_request(dev, "GET", "/server_info")[0] != 200:
            return False
    except OSError:
        return False
    children = psutil.Process(dev.pid).children()
    (daemon,) = [child for child in children if "dagster._daemon" in child.cmdline()]
    return daemon.num_threads() > 5  # the threads of schedules, sensors and runs


def send_request(
    dev: Dev, method: str, path: str, body: object = None, **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", dev.port, timeout=30)
    kind = {} if body is None else {"Content-Type": "application/json"}
    sent = None if body is None else json.dumps(body)
    connection.request(method, path, sent, kind | headers)
    reply = connection.getresponse()
    content = reply.read()
    connection.close()
    return reply.status, content


@pytest.mark.slow
def test_files_in_the_working_folder_are_not_executed(dev: Dev) -> None:
    assert dev.executed == ""
    assert dev.other_home_files == []


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/graphql%0a", "/graphql/%0A", "/x/../graphql"])
def test_mutation_by_get_is_refused_for_every_spelling_of_the_path(dev: Dev, path: str) -> None:
    for accepted in ("*/*", "image/avif,*/*;q=0.8"):
        status, content = send_request(dev, "GET", f"{path}?query={MUTATION}", Accept=accepted)
        assert b'"data"' not in content, (status, content)


@pytest.mark.slow
def test_notebook_pages_are_not_served(dev: Dev) -> None:
    """Dagster renders notebooks with their scripts, so a downloaded file could run in the UI."""
    query = f"?path={quote(str(dev.folder / 'x.ipynb'))}&repoLocName=sluice.pipelines.definitions"
    for path in ("/notebook", "/dagit/notebook"):
        assert send_request(dev, "GET", path + query)[0] == 404


@pytest.mark.slow
def test_code_server_is_unreachable_for_other_users(dev: Dev) -> None:
    """A process that can write to its socket can execute code."""
    socket_paths = set()
    for process in [psutil.Process(dev.pid), *psutil.Process(dev.pid).children(recursive=True)]:
        socket_paths |= {Path(str(c.laddr)) for c in process.net_connections("unix") if c.laddr}
        addresses = {c.laddr.ip for c in process.net_connections("tcp") if c.status == "LISTEN"}
        assert addresses <= {"127.0.0.1"}
    sockets = [path for path in socket_paths if path.is_socket()]

    assert sockets
    assert [path for path in sockets if path.stat().st_mode & 0o002 and is_reachable(path)] == []


def is_reachable(path: Path) -> bool:
    """Return whether another user may enter every folder above a path."""
    return all(folder.stat().st_mode & 0o001 for folder in path.parents)


@pytest.mark.slow
def test_shipped_pipeline_imports_nothing_from_the_working_folder(tmp_path: Path) -> None:
    plant(tmp_path)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sluice", "poc", "digits", "--minimum"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "SLUICE_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert read_executed(tmp_path) == ""
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "config",
    [
        """python_logs: {dagster_handler_config: {handlers: {x: {class: subprocess.Popen,
          args: [touch, {mark}]}}}}""",
        """python_logs: {dagster_handler_config: {formatters: {x: {"()": os.system,
          command: "touch {mark}"}}}}""",
    ],
)
def test_log_handlers_in_the_state_folder_are_refused(tmp_path: Path, config: str) -> None:
    """``.sluice`` is in the working folder, and its Dagster settings can name log handlers."""
    mark = tmp_path / "mark"
    home = Home.from_environment({"SLUICE_HOME": str(tmp_path / ".sluice")}, cwd=tmp_path)
    home.dagster.mkdir(parents=True)
    (home.dagster / "dagster.yaml").write_text(config.replace("{mark}", str(mark)))

    with (
        pytest.raises(SettingsError, match="python_logs"),
        open_instance(home) as instance,
    ):
        instance.get_handlers()
    assert not mark.exists()


REPORT = "window.parent.postMessage('secret', '*'); window.stolen = 'secret';"
FOREIGN = """<iframe id=f src="{url}/a.html"></iframe><script src="{url}/a.js"></script>
<script>onload = () => document.title = "loaded"</script>"""


@contextmanager
def serving(server: HTTPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium at /usr/bin/chromium")
def test_foreign_page_cannot_embed_or_frame_a_report(tmp_path: Path) -> None:
    sync = pytest.importorskip("playwright.sync_api")
    reports, foreign = tmp_path / "reports", tmp_path / "foreign"
    reports.mkdir()
    foreign.mkdir()
    (reports / "a.js").write_text(REPORT)
    (reports / "a.html").write_text("<title>report</title><script src=a.js></script>secret")
    seen = {}
    own = ReportServer(listen(0), reports)
    other_server = HTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(foreign))
    )
    with serving(own) as port, serving(other_server) as other, sync.sync_playwright() as playwright:
        (foreign / "index.html").write_text(FOREIGN.format(url=f"http://127.0.0.1:{port}"))
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        for name, host in {
            "own": f"127.0.0.1:{port}/a.html",
            "foreign": f"localhost:{other}/index.html",
        }.items():
            page = browser.new_page()
            page.goto(f"http://{host}")
            framed = [frame.content() for frame in page.frames[1:]]
            seen[name] = (
                page.evaluate("String(window.stolen)"),
                any("secret" in f for f in framed),
            )
        browser.close()

    assert seen == {"own": ("secret", False), "foreign": ("undefined", False)}
