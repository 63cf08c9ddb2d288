"""The client and the request of the tutorial's second chapter, against servers of this test."""

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
from tests.docs.test_tutorial import ROOT, chapter, post_of_the_second_chapter

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of the first two chapters, without a model."""
    folder = tmp_path_factory.mktemp("demand")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        blocks = [*chapter("1-first-verdict.md"), *chapter("2-serve-it.md")]
        for block in blocks:
            if block.file:
                Path(block.file).write_text(block.text)
        subprocess.run([sys.executable, "make_data.py"], check=True)
        assert run_command(["init", "data.csv", "--target", "demand"]) == 0
    return folder


class _Busy(BaseHTTPRequestHandler):
    """Answers 504, 503 and nothing at all, in turn, before each answer."""

    number = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        kind = _Busy.number % 4
        _Busy.number += 1
        if kind == 2:
            self.close_connection = True  # without a response
            return
        self.send_response((504, 503, 0, 200)[kind])
        self.end_headers()
        answer = {"version": 1, "arm": "production", "outputs": [[1.0]]}
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def busy() -> Iterator[str]:
    _Busy.number = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), _Busy) as server:
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


def test_the_traffic_survives_a_busy_server(project: Path, busy: str) -> None:
    done = run_traffic(project, busy, 5)

    assert done.returncode == 0, done.stderr
    assert "0 failed: HTTP Error 504" in done.stdout
    assert "1 failed: HTTP Error 503" in done.stdout
    assert "2 failed: Remote end closed connection" in done.stdout
    assert done.stdout.splitlines()[-1] == "5 requests, 4 failed"


def test_the_traffic_survives_a_server_that_is_not_there(project: Path) -> None:
    done = run_traffic(project, "http://127.0.0.1:9", 2)

    assert done.returncode == 0, done.stderr
    assert "Connection refused" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 requests, 2 failed"


def test_the_request_of_the_page_continues_the_table(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    workload = resolve(read_pipeline(Path("my_model.yaml"))).workload
    raw = workload.load_rows()
    frame = workload.compute_features(raw)
    body = json.loads(post_of_the_second_chapter())
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
