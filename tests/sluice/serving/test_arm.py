"""An arm batches waiting requests, and one failing request does not fail the others."""

import asyncio
import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from sluice.serving.arm import ArmWorker, NetworkFailed, NeverStarted, QueueFull
from tests.sluice.serving.serving_samples import deployed


class RecordingNetwork(nn.Module):
    """Doubles the first value of the last row and records its batches; raises at 13.

    Blocks until its gate is open.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.batches: list[list[float]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.gate.wait(20)
        self.batches.append(x[:, -1, 0].tolist())
        if bool((x == 13).any()):
            raise ValueError("thirteen")
        return 2 * x[:, -1, :1]


def submit(arm: ArmWorker, *values: float, timeout_s: float = 20.0) -> Any:
    x = np.zeros((len(values), 3, 2), np.float32)
    x[:, -1, 0] = values
    return asyncio.ensure_future(arm.predict(x, timeout_s=timeout_s, max_waiting=5))


async def predict_together(
    network: RecordingNetwork, *requests: tuple[float, ...], max_windows: int = 10
) -> Any:
    """Return the results of requests that wait while a first one, of one window, is computed."""
    arm = ArmWorker(deployed("one", 1, network), max_batch_size=max_windows, pause=None)
    first = submit(arm, 0.0)
    while arm.busy_s(1e12) == 0:
        await asyncio.sleep(0.001)
    waiting = [submit(arm, *values) for values in requests]
    await asyncio.sleep(0)
    network.gate.set()
    return await asyncio.gather(first, *waiting, return_exceptions=True)


def test_a_request_that_raises_does_not_fail_its_batch() -> None:
    network = RecordingNetwork()
    _, good, bad, other = asyncio.run(predict_together(network, (1.0,), (13.0,), (2.0, 3.0)))

    assert (good.tolist(), other.tolist()) == ([[[2.0]]], [[[4.0], [6.0]]])
    assert isinstance(bad, NetworkFailed)
    assert bad.error_site["error"] == "ValueError"
    assert network.batches[1:] == [[1, 13, 2, 3], [1], [13], [2, 3]]


def test_a_batch_contains_whole_requests_up_to_its_limit() -> None:
    network = RecordingNetwork()
    outputs = asyncio.run(
        predict_together(network, (1.0, 2.0), (3.0, 4.0), (5.0,), (6.0,) * 4, max_windows=3)
    )

    assert [part.shape for part in outputs] == [
        (1, 1, 1),
        (1, 2, 1),
        (1, 2, 1),
        (1, 1, 1),
        (1, 4, 1),
    ]
    assert network.batches == [[0], [1, 2], [3, 4, 5], [6, 6, 6, 6]]


def test_an_expired_request_is_not_computed_and_reports_never_started() -> None:
    network = RecordingNetwork()

    async def run() -> list[BaseException]:
        arm = ArmWorker(deployed("one", 1, network), max_batch_size=1, pause=None)
        started = submit(arm, 1.0, timeout_s=0.05)
        while arm.busy_s(1e12) == 0:
            await asyncio.sleep(0.001)
        expired = submit(arm, 2.0, timeout_s=0.05)
        outputs = await asyncio.gather(started, expired, return_exceptions=True)
        network.gate.set()
        await submit(arm, 3.0)
        return outputs

    started, expired = asyncio.run(run())

    assert type(started) is TimeoutError
    assert type(expired) is NeverStarted
    assert network.batches == [[1], [3]]


def test_a_request_to_a_full_queue_is_refused_immediately() -> None:
    network = RecordingNetwork()
    outputs = asyncio.run(predict_together(network, *[(1.0,)] * 6))

    assert [type(output) for output in outputs[-2:]] == [QueueFull, QueueFull]
    assert len([a for a in outputs if isinstance(a, np.ndarray)]) == 5


THREADS = """
import asyncio, numpy, os, torch
from sluice.serving.arm import ArmWorker
from sluice.serving.contract import InputContract
from sluice.serving.deployed import DeployedModel

class ThreadCounter(torch.nn.GRU):
    def forward(self, x):
        before = len(os.listdir("/proc/self/task"))
        output = super().forward(x)[0][:, -1]
        print(len(os.listdir("/proc/self/task")) - before)
        return output

contract = InputContract(columns=tuple("abcdefghi"), seq_len=22)
gru = ThreadCounter(9, 32, batch_first=True)
deployed = DeployedModel(version=1, candidate="c", contract=contract, target="y", networks=(gru,))
arm = ArmWorker(deployed, max_batch_size=1, pause=None)
asyncio.run(arm.predict(numpy.zeros((1, 22, 9), "float32"), timeout_s=9, max_waiting=1))
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads by Linux's /proc")
def test_an_arm_starts_no_openmp_threads() -> None:
    """OpenMP counts threads per caller; two per arm made a window 30 times slower under load."""
    completed = subprocess.run(
        [sys.executable, "-c", THREADS],
        env=os.environ | {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert completed.stdout.split() == ["0"]
