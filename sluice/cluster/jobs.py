"""Jobs of a worker pool, and their messages; the interface of local and Ray pools.

A job is pickled and sent to a worker process on any machine. While it runs it may emit progress
messages, and it ends by returning a result or raising an error. If the process or machine of a job
is lost, the job runs again. Therefore a job must resume from the files of its earlier attempts.
"""

import pickle
import traceback
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

from sluice.base.errors import SluiceError, TrainingFailed

Emit = Callable[[Any], None]
"""Function with which a job reports progress; it receives a picklable message."""


class PoolJob(Protocol):
    """Interface of a job: picklable, with a class in a module that the workers can import."""

    def __call__(self, emit: Emit) -> Any:
        """Run the job and return its result; report progress by calls of ``emit``.

        Raises:
            SluiceError: The job failed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """A progress message of a running job."""

    key: Hashable
    message: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """The result of a job that has returned."""

    key: Hashable
    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    """Message that the process or the machine of a job ended unexpectedly."""

    key: Hashable
    description: str
    """How the worker ended, as a phrase that can follow 'its'."""
    cause: str
    """Likely cause, as a sentence."""
    num_times_lost: int
    """Number of times that the worker of this job was lost so far."""
    will_retry: bool
    """Whether the job runs again; False if its retries are exhausted."""


JobMessage = JobProgress | JobResult | WorkerLost
"""Message of a pool about one job. The key is the job's key in ``JobPool.submit``."""


class JobPool(Protocol):
    """Interface of a set of workers that run jobs."""

    def has_capacity(self) -> bool:
        """Return whether another job can be submitted now."""
        ...

    def submit(self, key: Hashable, job: PoolJob) -> None:
        """Start a job.

        The pool must have capacity, and no running job may have the same key.
        """
        ...

    def next_message(self) -> JobMessage | None:
        """Wait for and return the next message of a job; None if only the capacity changed.

        Raises:
            SluiceError: Raised by a job.
        """
        ...


class RetryCounter:
    """Counts the lost workers of each job, and decides whether the job runs again."""

    def __init__(self, retries: int) -> None:
        self._retries = retries
        self._num_times_lost: Counter[Hashable] = Counter()

    def count_lost_worker(self, key: Hashable, description: str, cause: str) -> WorkerLost:
        """Count one more lost worker of the job."""
        self._num_times_lost[key] += 1
        num_times_lost = self._num_times_lost[key]
        return WorkerLost(
            key=key,
            description=description,
            cause=cause,
            num_times_lost=num_times_lost,
            will_retry=num_times_lost <= self._retries,
        )


def run_job(pickled_job: bytes, send: Callable[[bytes], None]) -> None:
    """Run a pickled job in a worker, and send its progress and its result or error.

    The receiver decodes each message with ``decode_message``.
    """

    def send_message(kind: str, value: object) -> None:
        send(pickle.dumps((kind, value)))

    try:
        result = pickle.loads(pickled_job)(lambda message: send_message("progress", message))
    except SluiceError as error:
        send_message("error", error)
    except (BrokenPipeError, ConnectionResetError):
        raise  # the parent process has ended
    except Exception as error:  # process boundary: user code and imports may raise anything
        traceback.print_exc()
        send_message("error", _unexpected_error(error))
    else:
        send_message("result", result)


def decode_message(key: Hashable, pickled_message: bytes) -> JobProgress | JobResult:
    """Decode a message that ``run_job`` sent for the job ``key``.

    Raises:
        SluiceError: Raised by the job.
    """
    kind, value = pickle.loads(pickled_message)
    if kind == "error":
        raise value
    if kind == "result":
        return JobResult(key=key, result=value)
    return JobProgress(key=key, message=value)


def _unexpected_error(error: Exception) -> TrainingFailed:
    return TrainingFailed(
        f"A worker could not run its job: {type(error).__name__}: {error}.",
        cause="The workers probably cannot import a module that this process imports.",
        fix="Put the code into a module that is importable on every machine of the cluster.",
    )
