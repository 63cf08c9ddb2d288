"""Measures the servers in turn, in several rounds, each in a separate process."""

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
from sluice.bench.serving.load import Load, run_paced_load, run_saturating_load
from sluice.bench.serving.servers import COLUMNS, SEQ_LEN, Kind, random_model
from sluice.serving.background import run_in_background

SERVER_NAMES: dict[Kind, str] = {
    "minimal": "minimal app",
    "production": "production",
    "canary": "canary at 50 %",
    "shadow": "shadow",
}
PACE_PER_S = 100.0
_CONNECTIONS = 8
_MAX_LOADING_S = 60.0


class ServerMeasurement(Record):
    """Medians over the rounds of one server."""

    p50_ms: float
    """Median latency at 100 requests per second, from the time when each request was due [ms]."""

    p99_ms: float
    """99th percentile of the same latency [ms]."""

    rate_per_s: float
    """Responses per second to eight clients that do not pause; 0 for the model alone."""

    answers: int
    """Number of responses to both loads."""

    failed: int
    """Number of these responses with a status other than 200."""


WithProgress = Callable[[range], Iterable[int]]
"""Wraps an iteration in a progress bar."""


def measure_kinds(
    *, rounds: int, seconds: float, with_progress: WithProgress
) -> dict[str, ServerMeasurement]:
    """Return the measurements by name of the server; the first are those of the model alone.

    Args:
        rounds: Rounds per server.
        seconds: Duration of each load in a round [s].
        with_progress: Wraps the iteration over the rounds in a progress bar.
    """
    kinds = get_args(Kind)
    body = json.dumps({"columns": COLUMNS, "windows": [[[0.5] * len(COLUMNS)] * SEQ_LEN]}).encode()
    model_loads: list[Load] = []
    paced_loads: dict[Kind, list[Load]] = {kind: [] for kind in kinds}
    saturating_loads: dict[Kind, list[Load]] = {kind: [] for kind in kinds}
    with contextlib.ExitStack() as stack:
        ports = {kind: stack.enter_context(_server(kind)) for kind in kinds}
        for port in ports.values():
            run_saturating_load(port, body, connections=2, seconds=0.5)
        for _ in with_progress(range(rounds)):
            model_loads.append(_model_alone(seconds))
            for kind, port in ports.items():
                paced_loads[kind].append(
                    run_paced_load(port, body, per_s=PACE_PER_S, seconds=seconds)
                )
                saturating_loads[kind].append(
                    run_saturating_load(port, body, connections=_CONNECTIONS, seconds=seconds / 2)
                )
    measurements = {"model alone": _summarize_loads(model_loads, [])}
    return measurements | {
        SERVER_NAMES[kind]: _summarize_loads(paced_loads[kind], saturating_loads[kind])
        for kind in kinds
    }


def _summarize_loads(paced_loads: list[Load], saturating_loads: list[Load]) -> ServerMeasurement:
    return ServerMeasurement(
        p50_ms=statistics.median(load.quantile_ms(0.5) for load in paced_loads),
        p99_ms=statistics.median(load.quantile_ms(0.99) for load in paced_loads),
        rate_per_s=statistics.median(load.rate for load in saturating_loads)
        if saturating_loads
        else 0.0,
        answers=sum(len(load.latencies_s) for load in (*paced_loads, *saturating_loads)),
        failed=sum(load.failed for load in (*paced_loads, *saturating_loads)),
    )


def _model_alone(seconds: float) -> Load:
    """Predict at the same rate in a thread that sleeps in between, like the thread of an arm."""
    deployed = random_model(1)
    x_NLD = np.full((1, SEQ_LEN, len(COLUMNS)), 0.5, np.float32)
    jobs: queue.SimpleQueue[bool] = queue.SimpleQueue()
    latencies: list[float] = []

    def work() -> None:
        torch.set_num_threads(1)  # per thread, see sluice/serving/arm.py
        deployed.predict(x_NLD, None)
        while jobs.get():
            start = time.monotonic()
            deployed.predict(x_NLD, None)
            latencies.append(time.monotonic() - start)

    worker = run_in_background(work, name="model")
    began = time.monotonic()
    for number in range(int(PACE_PER_S * seconds)):
        time.sleep(max(0.0, began + number / PACE_PER_S - time.monotonic()))
        jobs.put(True)
    jobs.put(False)
    worker.result()
    return Load(seconds=seconds, latencies_s=tuple(latencies), failed=0)


@contextlib.contextmanager
def _server(kind: Kind) -> Iterator[int]:
    """Run a server in a child process; yield its port."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "sluice.bench.serving.servers", kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # the log is written, but its destination is not measured
        text=True,
    )
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        if kind in ("canary", "shadow"):
            _await_challenger(port)
        yield port
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


def _await_challenger(port: int) -> None:
    """Wait until the challenger's process answers, so that it is measured."""
    deadline = time.monotonic() + _MAX_LOADING_S
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/model") as response:
            if json.load(response)["challenger"] is not None:
                return
        time.sleep(0.1)
    raise ContractError(
        f"The benchmark's challenger must load within {_MAX_LOADING_S:g} s, and has not.",
        fix="Make sure that memory and a core are free, then run again.",
    )
