"""Measures latency and throughput of the servers, each of which runs in a separate process."""

import contextlib
import json
import queue
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import get_args

import numpy as np
import torch

from sluice.base.errors import ContractError
from sluice.base.settings import Record
from sluice.bench.serving.load import LoadResult, run_constant_rate_load, run_saturating_load
from sluice.bench.serving.servers import COLUMNS, SEQ_LEN, ServerKind, random_model
from sluice.serving.background import run_in_background

SERVER_NAMES: dict[ServerKind, str] = {
    "minimal": "minimal app",
    "production": "production",
    "canary": "canary at 50 %",
    "shadow": "shadow",
}
REQUESTS_PER_S = 100.0
"""Rate of the constant-rate load [1/s]."""

_NUM_CONNECTIONS = 8
_MAX_LOADING_S = 60.0
"""Maximum wait until the challenger's process has loaded its model [s]."""


class ServerMeasurement(Record):
    """Measurements of one server: medians over the rounds, and counts of all rounds."""

    p50_ms: float
    """Median latency at 100 requests per second, from the time when each request was due [ms].

    For the model alone, the median duration of a prediction at this rate.
    """

    p99_ms: float
    """99th percentile of the same latency [ms]."""

    rate_per_s: float
    """Responses to eight clients that send without pause; 0 for the model alone [1/s]."""

    num_responses: int
    """Number of responses to both loads; number of predictions for the model alone."""

    num_failed: int
    """Number of these responses with a status other than 200."""


WithProgress = Callable[[range], Iterable[int]]
"""Wraps an iteration in a progress bar."""


def measure_servers(
    *, num_rounds: int, load_s: float, with_progress: WithProgress
) -> dict[str, ServerMeasurement]:
    """Return the measurements by name of the server, beginning with the model without a server.

    In every round, each server receives a load at a constant rate, and then a saturating load for
    half of the time.

    Args:
        num_rounds: Number of rounds.
        load_s: Duration of the load at a constant rate, in each round [s].
        with_progress: Wraps the iteration over the rounds in a progress bar.
    """
    kinds = get_args(ServerKind)
    body = json.dumps({"columns": COLUMNS, "windows": [[[0.5] * len(COLUMNS)] * SEQ_LEN]}).encode()
    model_loads: list[LoadResult] = []
    constant_rate_loads: dict[ServerKind, list[LoadResult]] = {kind: [] for kind in kinds}
    saturating_loads: dict[ServerKind, list[LoadResult]] = {kind: [] for kind in kinds}
    with contextlib.ExitStack() as stack:
        ports = {kind: stack.enter_context(_run_server(kind)) for kind in kinds}
        for port in ports.values():  # warm-up
            run_saturating_load(port, body, num_connections=2, seconds=0.5)
        for _ in with_progress(range(num_rounds)):
            model_loads.append(_measure_model_alone(load_s))
            for kind, port in ports.items():
                constant_rate_loads[kind].append(
                    run_constant_rate_load(
                        port, body, requests_per_s=REQUESTS_PER_S, seconds=load_s
                    )
                )
                saturating_loads[kind].append(
                    run_saturating_load(
                        port, body, num_connections=_NUM_CONNECTIONS, seconds=load_s / 2
                    )
                )
    measurements = {"model alone": _summarize_loads(model_loads, [])}
    return measurements | {
        SERVER_NAMES[kind]: _summarize_loads(constant_rate_loads[kind], saturating_loads[kind])
        for kind in kinds
    }


def _summarize_loads(
    constant_rate_loads: list[LoadResult], saturating_loads: list[LoadResult]
) -> ServerMeasurement:
    return ServerMeasurement(
        p50_ms=statistics.median(load.quantile_ms(0.5) for load in constant_rate_loads),
        p99_ms=statistics.median(load.quantile_ms(0.99) for load in constant_rate_loads),
        rate_per_s=statistics.median(load.responses_per_s for load in saturating_loads)
        if saturating_loads
        else 0.0,
        num_responses=sum(
            len(load.latencies_s) for load in (*constant_rate_loads, *saturating_loads)
        ),
        num_failed=sum(load.num_failed for load in (*constant_rate_loads, *saturating_loads)),
    )


def _measure_model_alone(seconds: float) -> LoadResult:
    """Measure predictions at the rate of the constant-rate load, without a server.

    The predictions run in a thread that waits for the next request, like the thread of an arm.
    """
    deployed = random_model(1)
    x_NLD = np.full((1, SEQ_LEN, len(COLUMNS)), 0.5, np.float32)
    jobs: queue.SimpleQueue[bool] = queue.SimpleQueue()
    latencies_s: list[float] = []

    def work() -> None:
        torch.set_num_threads(1)  # a setting of this thread only, see sluice/serving/arm.py
        deployed.predict(x_NLD, None)
        while jobs.get():
            prediction_start_s = time.monotonic()
            deployed.predict(x_NLD, None)
            latencies_s.append(time.monotonic() - prediction_start_s)

    worker = run_in_background(work, name="model")
    start_s = time.monotonic()
    for number in range(int(REQUESTS_PER_S * seconds)):
        time.sleep(max(0.0, start_s + number / REQUESTS_PER_S - time.monotonic()))
        jobs.put(True)
    jobs.put(False)
    worker.result()
    return LoadResult(seconds=seconds, latencies_s=tuple(latencies_s), num_failed=0)


@contextlib.contextmanager
def _run_server(kind: ServerKind) -> Iterator[int]:
    """Run a server in a child process; yield its port."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "sluice.bench.serving.servers", kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # the log is written as usual, but not stored
        text=True,
    )
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        if kind in ("canary", "shadow"):
            _wait_for_challenger(port)
        yield port
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


def _wait_for_challenger(port: int) -> None:
    """Wait until the challenger's process answers, so that it takes part in the measurement."""
    deadline_s = time.monotonic() + _MAX_LOADING_S
    while time.monotonic() < deadline_s:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/model") as response:
            if json.load(response)["challenger"] is not None:
                return
        time.sleep(0.1)
    raise ContractError(
        f"The benchmark's challenger must load within {_MAX_LOADING_S:g} s, and has not.",
        fix="Make sure that memory and a core are free, then run again.",
    )
