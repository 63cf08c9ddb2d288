"""Further ways into ``sluice dev``: what its folder contains, and what a page can ask."""

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
    *("lz4", "gmpy2"),  # the last two are not installed, and what is installed tries to import them
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dev:
    """A running ``sluice dev``, started with umask 0 in a folder that was downloaded."""

    port: int
    pid: int
    folder: Path

    @property
    def executed(self) -> str:
        """Return what planted files left behind when they ran."""
        return executed(self.folder)

    @property
    def other_home(self) -> list[str]:
        """Return what Dagster wrote to the folder that the planted ``.env`` names as its home."""
        planted = {f"{name}.py" for name in PLANTED} | {"dagster.yaml"}
        return [path.name for path in (self.folder / "other").iterdir() if path.name not in planted]


def executed(folder: Path) -> str:
    mark = folder / "executed"
    return mark.read_text() if mark.exists() else ""


def plant(folder: Path) -> None:
    """Put what executes a command into every place of a folder that a program might read."""
    mark = folder / "executed"
    code = f"open({str(mark)!r}, 'a').write(__file__ + ' ')\n"
    state, other = folder / ".sluice" / "dagster", folder / "other"
    for place in (folder, state, other):
        place.mkdir(parents=True, exist_ok=True)
        for name in PLANTED:
            (place / f"{name}.py").write_text(code)
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
    """Say whether the UI answers, and Dagster's daemon has opened its home and the code server."""
    try:
        if ask(dev, "GET", "/server_info")[0] != 200:
            return False
    except OSError:
        return False
    children = psutil.Process(dev.pid).children()
    (daemon,) = [child for child in children if "dagster._daemon" in child.cmdline()]
    return daemon.num_threads() > 5  # those of the schedules, sensors and runs


def ask(dev: Dev, method: str, path: str, body: object = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", dev.port, timeout=30)
    kind = {} if body is None else {"Content-Type": "application/json"}
    sent = None if body is None else json.dumps(body)
    connection.request(method, path, sent, kind | headers)
    reply = connection.getresponse()
    content = reply.read()
    connection.close()
    return reply.status, content


@pytest.mark.slow
def test_nothing_that_lies_in_a_downloaded_folder_is_executed(dev: Dev) -> None:
    assert dev.executed == ""
    assert dev.other_home == []


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/graphql%0a", "/graphql/%0A", "/x/../graphql"])
def test_no_spelling_of_the_path_lets_a_mutation_through_by_get(dev: Dev, path: str) -> None:
    for accepted in ("*/*", "image/avif,*/*;q=0.8"):
        status, content = ask(dev, "GET", f"{path}?query={MUTATION}", Accept=accepted)
        assert b'"data"' not in content, (status, content)


@pytest.mark.slow
def test_no_document_of_the_disk_becomes_a_page_of_the_ui(dev: Dev) -> None:
    """Dagster keeps a notebook's scripts: a page can have one downloaded, and opened here."""
    asked = f"?path={quote(str(dev.folder / 'x.ipynb'))}&repoLocName=sluice.pipelines.definitions"
    for path in ("/notebook", "/dagit/notebook"):
        assert ask(dev, "GET", path + asked)[0] == 404


@pytest.mark.slow
def test_no_other_user_reaches_the_code_server(dev: Dev) -> None:
    """Whoever can write to its socket has its code executed."""
    places = set()
    for process in [psutil.Process(dev.pid), *psutil.Process(dev.pid).children(recursive=True)]:
        places |= {Path(str(c.laddr)) for c in process.net_connections("unix") if c.laddr}
        addresses = {c.laddr.ip for c in process.net_connections("tcp") if c.status == "LISTEN"}
        assert addresses <= {"127.0.0.1"}
    sockets = [path for path in places if path.is_socket()]

    assert sockets
    assert [path for path in sockets if path.stat().st_mode & 0o002 and reachable(path)] == []


def reachable(path: Path) -> bool:
    """Say whether another user may pass every folder above a path."""
    return all(folder.stat().st_mode & 0o001 for folder in path.parents)


@pytest.mark.slow
def test_a_shipped_pipeline_takes_no_package_from_the_working_folder(tmp_path: Path) -> None:
    plant(tmp_path)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sluice", "poc", "digits", "--minimum"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "SLUICE_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert executed(tmp_path) == ""
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
def test_a_state_folder_that_was_downloaded_calls_nothing(tmp_path: Path, config: str) -> None:
    """``.sluice`` is in the working folder, and Dagster's settings in it name handlers of logs."""
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
def test_a_foreign_page_neither_embeds_nor_frames_a_report(tmp_path: Path) -> None:
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
