"""Jobs of a pool and the messages they send: the same interface on this machine and on a cluster.

A job is pickled and sent to a worker process on any machine. While it runs it may emit progress
messages; it ends by returning a result or raising an error. A job whose process or machine was lost
is run again, so it must be able to resume from the files of an earlier attempt.
"""

import pickle
import traceback
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

from sluice.base.errors import SluiceError, TrainingFailed

Emit = Callable[[Any], None]


class PoolJob(Protocol):
    """A picklable piece of work. Its class must be in a module that the workers can import."""

    def __call__(self, emit: Emit) -> Any:
        """Do the work and return its result; report progress to ``emit``.

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
    """The process or the machine of a job ended unexpectedly."""

    key: Hashable
    description: str
    """How the worker ended, as a phrase that follows 'its'."""
    cause: str
    num_losses: int
    """How often the worker of this job was lost so far."""
    will_retry: bool
    """Whether the job runs again. If False, its retries are exhausted."""


JobMessage = JobProgress | JobResult | WorkerLost


class JobPool(Protocol):
    """A set of workers that run jobs."""

    def has_capacity(self) -> bool:
        """Return whether another job can be submitted now."""
        ...

    def submit(self, key: Hashable, job: PoolJob) -> None:
        """Start a job. Requires free capacity and a key that no running job has."""
        ...

    def next_message(self) -> JobMessage | None:
        """Wait for the next message of a job; return None if only the capacity changed.

        Raises:
            SluiceError: Raised by a job.
        """
        ...


class RetryCounter:
    """Counts how often the worker of each job was lost, and decides whether the job runs again."""

    def __init__(self, retries: int) -> None:
        self._retries = retries
        self._num_losses: Counter[Hashable] = Counter()

    def count(self, key: Hashable, description: str, cause: str) -> WorkerLost:
        """Count one more lost worker of the job."""
        self._num_losses[key] += 1
        num_losses = self._num_losses[key]
        return WorkerLost(
            key=key,
            description=description,
            cause=cause,
            num_losses=num_losses,
            will_retry=num_losses <= self._retries,
        )


def run_job(content: bytes, send: Callable[[bytes], None]) -> None:
    """Run a pickled job in a worker; send its progress and its end for ``decode_message``."""

    def post(kind: str, value: object) -> None:
        send(pickle.dumps((kind, value)))

    try:
        result = pickle.loads(content)(lambda message: post("progress", message))
    except SluiceError as error:
        post("error", error)
    except (BrokenPipeError, ConnectionResetError):
        raise  # the parent process has ended
    except Exception as error:  # process boundary: user code and imports may raise anything
        traceback.print_exc()
        post("error", _unexpected(error))
    else:
        post("result", result)


def decode_message(key: Hashable, content: bytes) -> JobProgress | JobResult:
    """Decode a message that ``run_job`` sent for the job ``key``.

    Raises:
        SluiceError: Raised by the job.
    """
    kind, value = pickle.loads(content)
    if kind == "error":
        raise value
    return (
        JobResult(key=key, result=value)
        if kind == "result"
        else JobProgress(key=key, message=value)
    )


def _unexpected(error: Exception) -> TrainingFailed:
    return TrainingFailed(
        f"A worker could not run its job: {type(error).__name__}: {error}.",
        cause="Most likely the workers cannot import a module that this process imports.",
        fix="Put the code into a module that is importable on every machine of the cluster.",
    )
