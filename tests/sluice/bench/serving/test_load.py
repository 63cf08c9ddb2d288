"""The client of the benchmark counts what it should."""

import http.server
import threading
from collections.abc import Iterator

import pytest

from sluice.bench.serving.load import Load, run_paced_load, run_saturating_load


class Answers(http.server.BaseHTTPRequestHandler):
    """Refuses a body of 'no'."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(503 if body == b"no" else 200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_a_pace_sends_so_many_and_failures_are_counted(port: int) -> None:
    good = run_paced_load(port, b"ok", per_s=100, seconds=0.2)
    bad = run_paced_load(port, b"no", per_s=100, seconds=0.2)

    assert (len(good.latencies_s), good.failed) == (20, 0)
    assert (len(bad.latencies_s), bad.failed) == (20, 20)
    assert good.seconds >= 0.19


def test_saturation_never_pauses(port: int) -> None:
    found = run_saturating_load(port, b"ok", connections=2, seconds=0.2)

    assert len(found.latencies_s) > 10
    assert found.rate == len(found.latencies_s) / found.seconds


def test_quantiles_are_those_of_the_latencies() -> None:
    load = Load(seconds=1.0, latencies_s=tuple(n / 1000 for n in range(100, 0, -1)), failed=0)

    assert (load.quantile_ms(0.5), load.quantile_ms(0.99)) == pytest.approx((51, 100))
