"""The client of the tutorial's second chapter continues after errors; its request is valid."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from sluice.cli.app import run_command
from sluice.config.pipeline import read_pipeline
from sluice.config.resolved import resolve
from tests.docs.test_tutorial import ROOT, read_request_body, runnable_blocks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the first two chapters, without a model."""
    folder = tmp_path_factory.mktemp("demand")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        blocks = [*runnable_blocks("1-first-verdict.md"), *runnable_blocks("2-serve-it.md")]
        for block in blocks:
            if block.file:
                Path(block.file).write_text(block.text)
        subprocess.run([sys.executable, "make_data.py"], check=True)
        assert run_command(["init", "data.csv", "--target", "demand"]) == 0
    return folder


class _UnreliableServer(BaseHTTPRequestHandler):
    """Responds with 504, 503, a closed connection and 200, in turn."""

    number = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        kind = _UnreliableServer.number % 4
        _UnreliableServer.number += 1
        if kind == 2:
            self.close_connection = True  # without a response
            return
        self.send_response((504, 503, 0, 200)[kind])
        self.end_headers()
        response = {"version": 1, "arm": "production", "outputs": [[1.0]]}
        self.wfile.write(json.dumps(response).encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def unreliable_server() -> Iterator[str]:
    _UnreliableServer.number = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), _UnreliableServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def run_traffic(project: Path, url: str, count: int) -> subprocess.CompletedProcess[str]:
    program = (project / "traffic.py").read_text().replace("http://127.0.0.1:8000", url)
    (project / "traffic_here.py").write_text(program)
    return subprocess.run(
        [sys.executable, "traffic_here.py", str(count)],
        cwd=project,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{project}"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_client_continues_after_server_errors(project: Path, unreliable_server: str) -> None:
    done = run_traffic(project, unreliable_server, 5)

    assert done.returncode == 0, done.stderr
    assert "0 failed: HTTP Error 504" in done.stdout
    assert "1 failed: HTTP Error 503" in done.stdout
    assert "2 failed: Remote end closed connection" in done.stdout
    assert done.stdout.splitlines()[-1] == "5 requests, 4 failed"


def test_client_continues_without_a_server(project: Path) -> None:
    done = run_traffic(project, "http://127.0.0.1:9", 2)

    assert done.returncode == 0, done.stderr
    assert "Connection refused" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 requests, 2 failed"


def test_example_request_continues_the_rows_of_the_data(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    workload = resolve(read_pipeline(Path("my_model.yaml"))).workload
    raw = workload.load_rows()
    frame = workload.compute_features(raw)
    body = json.loads(read_request_body())
    like = workload.request_of(raw, frame, np.array([len(frame) - 1]))

    assert sorted(body["columns"]) == sorted(like["columns"])
    (rows,) = body["rows"]
    assert len(rows) == len(like["rows"][0])
    table = raw.reset_index()[body["columns"]].tail(len(rows) - 1)
    expected = [[str(row[0])[:10], *row[1:]] for row in table.itertuples(index=False)]
    assert rows[:-1] == expected
    assert rows[-1][0] == "2025-12-06"
    assert rows[-1][-1] is None
    assert workload.codec().decode(body) is not None
