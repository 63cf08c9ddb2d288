"""Runs one model in its own thread and batches waiting requests.

An arm is one of the two versions of a rollout: production or the challenger. Its thread keeps
torch from blocking the event loop, and a network that hangs blocks only this thread. Batching
pays, because small networks take about as long for eight windows as for one. All requests that
arrive while a batch is computed form the next batch; no request waits for a batch to fill.

Shape legend: M = networks, N = elements of a request, such as windows, O = outputs, E = width of an
embedding.
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

from sluice.serving.deployed import Pause, ServedModel
from sluice.serving.log import error_site
from sluice.serving.model_arrays import ModelArrays, can_batch, concatenate, count_elements

EnsembleOutput = NDArray[np.float64]
"""Output of each network (M, N, O), or the mean of the networks (N, O)."""


class QueueFull(Exception):
    """Too many requests wait for the arm; the request itself may be valid."""


class NetworkFailed(Exception):
    """A network raised an error; ``error_site`` has its type and location, but no request data."""

    def __init__(self, error_site: dict[str, Any]) -> None:
        super().__init__(error_site["error"])
        self.error_site = error_site


class NeverStarted(TimeoutError):
    """The deadline passed before the arm started to compute the request."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """Error of a network as a value; see the comment in ``_Job``."""

    error_site: dict[str, Any]


@dataclass(slots=True, eq=False)
class StartTime:
    """Time at which an arm started to compute a request [s, monotonic]; None before that."""

    monotonic_s: float | None = None


@dataclass(slots=True, eq=False)
class _Job:
    """One request in the queue of the thread."""

    x: ModelArrays
    # An error is the result of the future and not its exception. An exception references its stack
    # frames, and these reference the arm: only the garbage collector would free this cycle.
    output_future: "asyncio.Future[EnsembleOutput | _Failure | None]"
    """Future of the output. Its result is a _Failure if the network raised an error, and None if
    the deadline passed."""

    loop: asyncio.AbstractEventLoop
    start_time: StartTime
    is_embedding: bool = False
    """Whether the embeddings of the elements are requested instead of outputs."""


@dataclass(slots=True, eq=False)
class _SharedQueue:
    """State shared by the event loop and the thread."""

    jobs: "queue.SimpleQueue[_Job | None]" = field(default_factory=queue.SimpleQueue)
    num_waiting: int = 0
    """Number of jobs that have no response yet; used by the event loop only."""

    batch_started_at: float | None = None
    """Time at which the current batch began [s, monotonic]; None without a batch."""

    idle_event: threading.Event = field(default_factory=threading.Event)
    """Event that is set while no batch is computed."""


class ArmWorker:
    """A deployed model with its thread. The thread ends once the arm is no longer referenced."""

    def __init__(self, deployed: ServedModel, *, max_batch_size: int, pause: Pause | None) -> None:
        """Start the thread.

        Args:
            deployed: The model.
            max_batch_size: Maximum number of elements of a batch.
            pause: Function that the thread calls before each network; None for no pauses.
        """
        self.deployed = deployed
        self._queue = _SharedQueue()
        threading.Thread(
            target=_run_batches,
            args=(self._queue, deployed, max_batch_size, pause),
            name=f"arm-{deployed.candidate[:12]}",
            daemon=True,  # a network that hangs must not keep the process alive
        ).start()
        # When the arm is no longer referenced, None is queued, which ends the thread. All jobs
        # precede None in the queue, because the caller of a job references the arm.
        weakref.finalize(self, self._queue.jobs.put, None).atexit = False

    @property
    def num_waiting(self) -> int:
        """Number of requests that have no response yet."""
        return self._queue.num_waiting

    @property
    def idle_event(self) -> threading.Event:
        """Event that is set while the arm computes nothing; it does not reference the arm."""
        return self._queue.idle_event

    def busy_s(self, now: float) -> float:
        """Return for how long the current batch has been computed [s]; 0 without a batch.

        Args:
            now: Current time [s, monotonic].
        """
        batch_started_at = self._queue.batch_started_at
        return 0.0 if batch_started_at is None else now - batch_started_at

    async def predict(
        self,
        x: ModelArrays,
        *,
        timeout_s: float,
        max_waiting: int,
        start_time: StartTime | None = None,
    ) -> EnsembleOutput:
        """Return the output of each network (M, N, O), batched with other waiting requests.

        Args:
            x: Inputs of N elements.
            timeout_s: Longest wait [s].
            max_waiting: Number of requests without a response at which the queue is full.
            start_time: Receives the time at which the arm starts to compute the request.

        Raises:
            QueueFull: Too many requests wait.
            TimeoutError: The deadline passed. The error is a NeverStarted if the arm had not
                started to compute the request; the arm then skips the request.
            NetworkFailed: The network raised an error.
        """
        return await self._request(
            x,
            is_embedding=False,
            timeout_s=timeout_s,
            max_waiting=max_waiting,
            start_time=start_time,
        )

    async def embed(
        self, x: ModelArrays, *, timeout_s: float, max_waiting: int
    ) -> NDArray[np.float64]:
        """Return the embeddings (N, E) of N elements, computed in a separate batch.

        The arguments are those of ``predict``.

        Raises:
            QueueFull, TimeoutError, NetworkFailed: See ``predict``.
        """
        response = await self._request(
            x, is_embedding=True, timeout_s=timeout_s, max_waiting=max_waiting, start_time=None
        )
        embeddings: NDArray[np.float64] = response[0]
        return embeddings

    async def _request(
        self,
        x: ModelArrays,
        *,
        is_embedding: bool,
        timeout_s: float,
        max_waiting: int,
        start_time: StartTime | None,
    ) -> EnsembleOutput:
        shared_queue = self._queue
        if shared_queue.num_waiting >= max_waiting:
            raise QueueFull
        loop = asyncio.get_running_loop()
        job = _Job(x, loop.create_future(), loop, start_time or StartTime(), is_embedding)
        shared_queue.num_waiting += 1
        shared_queue.jobs.put(job)
        timer = loop.call_later(timeout_s, _resolve, job, None)  # asyncio.timeout would cost 10 us
        try:
            result = await job.output_future
        finally:
            timer.cancel()
            shared_queue.num_waiting -= 1
        if result is None:
            raise NeverStarted if job.start_time.monotonic_s is None else TimeoutError
        if isinstance(result, _Failure):
            raise NetworkFailed(result.error_site)
        return result


def _run_batches(
    shared_queue: _SharedQueue, deployed: ServedModel, max_batch_size: int, pause: Pause | None
) -> None:
    """Process jobs until None is queued."""
    # OpenMP stores its number of threads per thread, so the number of the main thread does not
    # apply here, although torch.get_num_threads reports it. With two OpenMP threads, a window took
    # 85 ms instead of 2.6 ms.
    torch.set_num_threads(1)
    # Job that was taken from the queue but could not join the last batch.
    deferred_job: _Job | None = None
    shared_queue.idle_event.set()
    while True:
        first_job = deferred_job if deferred_job is not None else shared_queue.jobs.get()
        deferred_job = None
        if first_job is None:
            return
        batch, batch_size, is_stopping = [first_job], count_elements(first_job.x), False
        while batch_size < max_batch_size and not first_job.is_embedding:
            try:
                next_job = shared_queue.jobs.get_nowait()
            except queue.Empty:
                break
            if next_job is None:
                is_stopping = True
                break
            num_elements = count_elements(next_job.x)
            if (
                next_job.is_embedding
                or batch_size + num_elements > max_batch_size
                or not can_batch(first_job.x, next_job.x)
            ):
                deferred_job = next_job
                break
            batch.append(next_job)
            batch_size += num_elements
        # Jobs that were neither cancelled nor answered with a timeout.
        pending_jobs = [job for job in batch if not job.output_future.done()]
        now = time.monotonic()
        for job in pending_jobs:
            job.start_time.monotonic_s = now
        shared_queue.batch_started_at = now
        shared_queue.idle_event.clear()
        _compute(pending_jobs, deployed, pause)
        shared_queue.idle_event.set()
        shared_queue.batch_started_at = None
        del first_job, batch, pending_jobs
        if is_stopping:
            return


def _compute(jobs: list[_Job], deployed: ServedModel, pause: Pause | None) -> None:
    """Compute jobs as one batch, and deliver an output or a failure to each job."""
    if not jobs:
        return
    try:
        x = concatenate([job.x for job in jobs])
        if jobs[0].is_embedding:
            assert deployed.embedder is not None, "embeddings are requested only with an embedder"
            output = deployed.embedder.embed(x)
        else:
            output = deployed.predict(x, pause)
        if output.shape[1] != count_elements(x):
            raise ValueError(f"{output.shape[1]} predictions for {count_elements(x)} elements")
    except Exception as error:  # user code may raise anything, which would end the thread
        if len(jobs) > 1:  # compute each job alone, so that only the failing one gets the error
            for job in jobs:
                _compute([job], deployed, pause)
        else:
            site = error.error_site if isinstance(error, NetworkFailed) else error_site(error)
            _deliver(jobs, [_Failure(site)])
        return
    split_indices = np.cumsum([count_elements(job.x) for job in jobs])[:-1]
    _deliver(jobs, np.split(output, split_indices, axis=1))


def _resolve(job: _Job, result: EnsembleOutput | _Failure | None) -> None:
    # The future is already done if the deadline has passed, if it has an output, or if the caller
    # was cancelled.
    if not job.output_future.done():
        job.output_future.set_result(result)


def _deliver(jobs: list[_Job], results: Sequence[EnsembleOutput | _Failure]) -> None:
    def resolve_all() -> None:
        for job, result in zip(jobs, results, strict=True):
            _resolve(job, result)

    try:
        jobs[0].loop.call_soon_threadsafe(resolve_all)
    except RuntimeError:  # the loop is closed, so no caller waits
        return
