"""One model with its own thread: requests that wait together are computed together.

Torch must not hold up the event loop, and eight small networks cost about as much for eight windows
as for one. So whatever has come in while the last batch was computed is the next batch; nobody
waits for a batch to fill. A network that hangs holds up its own thread only.

Shape legend: M = networks, N = windows, L = rows of a window, D = features, O = outputs.
"""

import asyncio
import queue
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sluice.serving.deployed import Pause, Served
from sluice.serving.log import place_of

Output = NDArray[np.float64]


class Busy(Exception):
    """More requests wait for the arm than may; says nothing about the request."""


class NetworkFailed(Exception):
    """The network raised; ``place`` says what and where, and not what the request held."""

    def __init__(self, place: dict[str, Any]) -> None:
        super().__init__(place["error"])
        self.place = place


class NeverStarted(TimeoutError):
    """The time was over before the arm came to the request."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """What a network raised."""

    place: dict[str, Any]


@dataclass(slots=True, eq=False)
class Began:
    """When an arm came to a request [s, monotonic]; None before."""

    at: float | None = None


@dataclass(slots=True, eq=False)
class _Job:
    """One request on its way through the thread."""

    x_NLD: NDArray[np.float32]
    # A failure is a value here: the exception itself would lead to the frames, these to the arm,
    # and an arm that is in a circle ends only when the garbage collector comes by.
    answer: "asyncio.Future[Output | _Failure | None]"
    """None when there was no answer in time."""

    loop: asyncio.AbstractEventLoop
    began: Began


@dataclass(slots=True, eq=False)
class _Desk:
    """What the event loop and the thread share."""

    jobs: "queue.SimpleQueue[_Job | None]" = field(default_factory=queue.SimpleQueue)
    waiting: int = 0
    """Jobs handed in and not yet answered; touched by the event loop only."""

    started_at: float | None = None
    """When the batch under way began [s, monotonic]; None when there is none."""

    idle: threading.Event = field(default_factory=threading.Event)
    """Set while there is no batch under way."""


class Arm:
    """A deployed model that answers. Its thread ends by itself once nobody holds the arm."""

    def __init__(self, deployed: Served, *, max_windows: int, pause: Pause | None) -> None:
        """Start the thread.

        Args:
            deployed: What answers.
            max_windows: Of one batch.
            pause: Called in the thread between two networks.
        """
        self.deployed = deployed
        self._desk = _Desk()
        threading.Thread(
            target=_work,
            args=(self._desk, deployed, max_windows, pause),
            name=f"arm-{deployed.candidate[:12]}",
            daemon=True,  # a network that hangs must not keep the process
        ).start()
        # Behind every job handed in before: whoever waits holds the arm.
        weakref.finalize(self, self._desk.jobs.put, None).atexit = False

    @property
    def waiting(self) -> int:
        """Requests that are not answered yet."""
        return self._desk.waiting

    @property
    def idle(self) -> threading.Event:
        """Set while the arm computes nothing; holding it does not hold the arm."""
        return self._desk.idle

    def busy_s(self, now: float) -> float:
        """Return how long the batch under way has taken by ``now`` [s, monotonic]."""
        started = self._desk.started_at
        return 0.0 if started is None else now - started

    async def predict(
        self,
        x_NLD: NDArray[np.float32],
        *,
        timeout_s: float,
        max_waiting: int,
        began: Began | None = None,
    ) -> Output:
        """Return what each network says (M, N, O), computed with whatever else waits.

        Args:
            x_NLD: Windows (N, L, D).
            timeout_s: Longest wait.
            max_waiting: Refuse when so many requests wait already.
            began: Set once the arm comes to the request.

        Raises:
            Busy: Too many wait.
            TimeoutError: There was no answer in time. NeverStarted when it was not begun either;
                then it never will be.
            NetworkFailed: The network raised.
        """
        desk = self._desk
        if desk.waiting >= max_waiting:
            raise Busy
        loop = asyncio.get_running_loop()
        job = _Job(x_NLD, loop.create_future(), loop, began or Began())
        desk.waiting += 1
        desk.jobs.put(job)
        timer = loop.call_later(timeout_s, _settle, job, None)  # asyncio.timeout takes 10 us
        try:
            found = await job.answer
        finally:
            timer.cancel()
            desk.waiting -= 1
        if found is None:
            raise NeverStarted if job.began.at is None else TimeoutError
        if isinstance(found, _Failure):
            raise NetworkFailed(found.place)
        return found


def _work(desk: _Desk, deployed: Served, max_windows: int, pause: Pause | None) -> None:
    """Take jobs until there is a None."""
    # Of this very thread: OpenMP's number of threads is each thread's own, whatever was set in the
    # main one and whatever torch.get_num_threads says. With two, a window took 85 ms, not 2.6.
    torch.set_num_threads(1)
    held: _Job | None = None
    desk.idle.set()
    while True:
        first = held if held is not None else desk.jobs.get()
        held = None
        if first is None:
            return
        batch, windows, last = [first], len(first.x_NLD), False
        while windows < max_windows:
            try:
                following = desk.jobs.get_nowait()
            except queue.Empty:
                break
            if following is None:
                last = True
                break
            if windows + len(following.x_NLD) > max_windows:
                held = following
                break
            batch.append(following)
            windows += len(following.x_NLD)
        wanted = [job for job in batch if not job.answer.done()]  # too late, or cancelled
        now = time.monotonic()
        for job in wanted:
            job.began.at = now
        desk.started_at = now
        desk.idle.clear()
        _answer(wanted, deployed, pause)
        desk.idle.set()
        desk.started_at = None
        del first, batch, wanted
        if last:
            return


def _answer(jobs: list[_Job], deployed: Served, pause: Pause | None) -> None:
    if not jobs:
        return
    try:
        windows = np.concatenate([job.x_NLD for job in jobs])
        found = deployed.predict(windows, pause)
        if found.shape[1] != len(windows):
            raise ValueError(f"{found.shape[1]} predictions for {len(windows)} windows")
    except Exception as error:  # the network is anybody's code, and this is the edge of its thread
        if len(jobs) > 1:  # one of them is to blame, not all
            for job in jobs:
                _answer([job], deployed, pause)
        else:
            told = error.place if isinstance(error, NetworkFailed) else place_of(error)
            _tell(jobs, [_Failure(told)])
        return
    ends = np.cumsum([len(job.x_NLD) for job in jobs])[:-1]
    _tell(jobs, np.split(found, ends, axis=1))


def _settle(job: _Job, result: Output | _Failure | None) -> None:
    if not job.answer.done():  # the deadline or the answer, whichever came first
        job.answer.set_result(result)


def _tell(jobs: list[_Job], results: Sequence[Output | _Failure]) -> None:
    def settle() -> None:
        for job, result in zip(jobs, results, strict=True):
            _settle(job, result)

    try:
        jobs[0].loop.call_soon_threadsafe(settle)
    except RuntimeError:  # the loop is closed: nobody waits any more
        return
