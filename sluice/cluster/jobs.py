"""What a pool runs, and what it hears of it: the same on this machine and on a cluster.

A job is pickled to a process that may be anywhere. It tells what it likes while it runs, and
returns something or raises. A job whose process or machine was lost is run again, so it must be
able to go on from what an earlier attempt left behind.
"""

import pickle
import traceback
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

from sluice.base.errors import SluiceError, TrainingFailed

Tell = Callable[[Any], None]


class Job(Protocol):
    """A piece of work that can be pickled; its class lies in a module that workers can import."""

    def __call__(self, tell: Tell) -> Any:
        """Do the work; ``tell`` whoever watches; return the result or raise a ``SluiceError``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A job that is under way said something."""

    key: Hashable
    message: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A job returned."""

    key: Hashable
    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The process or the machine of a job is gone."""

    key: Hashable
    what: str
    """How it ended, to follow 'its'."""
    cause: str
    times: int
    """How often this job was lost by now."""
    again: bool
    """Whether it runs again; otherwise the pool has given it up."""


Arrival = Told | Done | Lost


class Pool(Protocol):
    """Where jobs run."""

    def free(self) -> bool:
        """Return whether it takes another job now."""
        ...

    def give(self, key: Hashable, job: Job) -> None:
        """Start a job; call it only when the pool is free, with a key that is not under way."""
        ...

    def next(self) -> Arrival | None:
        """Wait for news of a job; None when only the number of free places changed.

        Raises:
            SluiceError: As a job raised it.
        """
        ...


class Losses:
    """Counts how often each job was lost, and decides whether it runs again."""

    def __init__(self, retries: int) -> None:
        self._retries = retries
        self._times: Counter[Hashable] = Counter()

    def count(self, key: Hashable, what: str, cause: str) -> Lost:
        """Count one more loss of the job."""
        self._times[key] += 1
        times = self._times[key]
        return Lost(key=key, what=what, cause=cause, times=times, again=times <= self._retries)


def run_job(content: bytes, send: Callable[[bytes], None]) -> None:
    """Run a pickled job in a worker; send each message and at last the end, for ``read_news``."""

    def post(kind: str, value: object) -> None:
        send(pickle.dumps((kind, value)))

    try:
        result = pickle.loads(content)(lambda message: post("told", message))
    except SluiceError as error:
        post("raised", error)
    except (BrokenPipeError, ConnectionResetError):
        raise  # whoever asked is gone
    except Exception as error:  # the edge of the process: user code and imports may raise anything
        traceback.print_exc()
        post("raised", _unexpected(error))
    else:
        post("done", result)


def read_news(key: Hashable, content: bytes) -> Told | Done:
    """Read what ``run_job`` sent of the job ``key``.

    Raises:
        SluiceError: As the job raised it.
    """
    kind, value = pickle.loads(content)
    if kind == "raised":
        raise value
    return Done(key=key, result=value) if kind == "done" else Told(key=key, message=value)


def _unexpected(error: Exception) -> TrainingFailed:
    return TrainingFailed(
        f"A worker could not run its job: {type(error).__name__}: {error}.",
        cause="A module that this process imports is not there for its workers, most likely.",
        fix="Put the code into a module on Python's path, on every machine of a cluster.",
    )
