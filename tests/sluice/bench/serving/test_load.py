"""The load generator of the serving benchmark counts requests, failures and latencies."""

import http.server
import threading
from collections.abc import Iterator

import pytest

from sluice.bench.serving.load import LoadResult, run_constant_rate_load, run_saturating_load


class Handler(http.server.BaseHTTPRequestHandler):
    """Returns 503 for the body 'no', otherwise 200."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise the second packet of a response waits

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
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_constant_rate_load_sends_the_expected_number_and_counts_failures(port: int) -> None:
    good = run_constant_rate_load(port, b"ok", requests_per_s=100, seconds=0.2)
    bad = run_constant_rate_load(port, b"no", requests_per_s=100, seconds=0.2)

    assert (len(good.latencies_s), good.num_failed) == (20, 0)
    assert (len(bad.latencies_s), bad.num_failed) == (20, 20)
    assert good.seconds >= 0.19


def test_saturating_load_sends_requests_without_pause(port: int) -> None:
    found = run_saturating_load(port, b"ok", num_connections=2, seconds=0.2)

    assert len(found.latencies_s) > 10
    assert found.responses_per_s == len(found.latencies_s) / found.seconds


def test_quantiles_are_those_of_the_latencies() -> None:
    load = LoadResult(
        seconds=1.0, latencies_s=tuple(n / 1000 for n in range(100, 0, -1)), num_failed=0
    )

    assert (load.quantile_ms(0.5), load.quantile_ms(0.99)) == pytest.approx((51, 100))
