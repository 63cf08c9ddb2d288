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
from sluice.bench.serving.load import Load, paced, saturated
from sluice.bench.serving.servers import COLUMNS, SEQ_LEN, Kind, random_model
from sluice.serving.background import in_background

NAMES: dict[Kind, str] = {
    "shortest": "shortest app",
    "production": "production",
    "canary": "canary at 50 %",
    "shadow": "shadow",
}
PACE_PER_S = 100.0
_CONNECTIONS = 8
_LOADING_S = 60.0


class ServerMeasurement(Record):
    """Medians over the rounds of one server."""

    p50_ms: float
    """Median latency at 100 requests per second, from the time when each request was due [ms]."""

    p99_ms: float
    """99th percentile of the same latency [ms]."""

    rate_per_s: float
    """Responses per second to eight clients that do not pause; 0 for the model alone."""

    answers: int
    failed: int


Watch = Callable[[range], Iterable[int]]


def measure_kinds(*, rounds: int, seconds: float, watch: Watch) -> dict[str, ServerMeasurement]:
    """Return the measurements by name of the server, the model alone first.

    Args:
        rounds: Rounds per server.
        seconds: Duration of each load in a round [s].
        watch: Wraps the iteration over the rounds, to show progress.
    """
    kinds = get_args(Kind)
    body = json.dumps({"columns": COLUMNS, "windows": [[[0.5] * len(COLUMNS)] * SEQ_LEN]}).encode()
    alone: list[Load] = []
    paces: dict[Kind, list[Load]] = {kind: [] for kind in kinds}
    rates: dict[Kind, list[Load]] = {kind: [] for kind in kinds}
    with contextlib.ExitStack() as stack:
        ports = {kind: stack.enter_context(_server(kind)) for kind in kinds}
        for port in ports.values():
            saturated(port, body, connections=2, seconds=0.5)
        for _ in watch(range(rounds)):
            alone.append(_model_alone(seconds))
            for kind, port in ports.items():
                paces[kind].append(paced(port, body, per_s=PACE_PER_S, seconds=seconds))
                rates[kind].append(
                    saturated(port, body, connections=_CONNECTIONS, seconds=seconds / 2)
                )
    measurements = {"model alone": _summarize_loads(alone, [])}
    return measurements | {
        NAMES[kind]: _summarize_loads(paces[kind], rates[kind]) for kind in kinds
    }


def _summarize_loads(paces: list[Load], rates: list[Load]) -> ServerMeasurement:
    return ServerMeasurement(
        p50_ms=statistics.median(load.quantile_ms(0.5) for load in paces),
        p99_ms=statistics.median(load.quantile_ms(0.99) for load in paces),
        rate_per_s=statistics.median(load.rate for load in rates) if rates else 0.0,
        answers=sum(len(load.latencies_s) for load in (*paces, *rates)),
        failed=sum(load.failed for load in (*paces, *rates)),
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

    working = in_background(work, name="model")
    began = time.monotonic()
    for number in range(int(PACE_PER_S * seconds)):
        time.sleep(max(0.0, began + number / PACE_PER_S - time.monotonic()))
        jobs.put(True)
    jobs.put(False)
    working.result()
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
    deadline = time.monotonic() + _LOADING_S
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/model") as answer:
            if json.load(answer)["challenger"] is not None:
                return
        time.sleep(0.1)
    raise ContractError(
        f"The benchmark's challenger must load within {_LOADING_S:g} s, and has not.",
        fix="Make sure that memory and a core are free, then run again.",
    )
