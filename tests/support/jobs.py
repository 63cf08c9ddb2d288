"""Jobs for tests of worker pools: progress, errors, and processes that die."""

import atexit
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from sluice.base.errors import ContractError


@dataclass(frozen=True)
class Square:
    """Emits its number and returns the square."""

    number: int

    def __call__(self, emit):
        emit(self.number)
        return self.number**2


@dataclass(frozen=True)
class Wait:
    """Emits its process id and environment, then waits for a file."""

    until: Path

    def __call__(self, emit):
        names = ("OMP_NUM_THREADS", "PYTHONHASHSEED")
        emit((os.getpid(), {name: os.environ.get(name) for name in names}))
        while not self.until.exists():
            time.sleep(0.02)
        return "released"


@dataclass(frozen=True)
class Fail:
    """Raises the named exception."""

    name: str

    def __call__(self, emit):
        raise {
            "ContractError": ContractError("the rows are wrong", fix="Correct them."),
            "ValueError": ValueError("the user's bug"),
            "SystemExit": SystemExit(7),
        }[self.name]


@dataclass(frozen=True)
class DieUntil:
    """Ends its process in the first ``times`` calls, which it counts in a file."""

    times: int
    count: Path

    def __call__(self, emit):
        with self.count.open("a") as file:
            file.write("x")
        if len(self.count.read_text()) <= self.times:
            os._exit(3)
        return os.getpid()


@dataclass(frozen=True)
class TerminatedTwice:
    """Gets SIGTERM, and again during the exit handlers of its process."""

    done: Path

    def __call__(self, emit):
        emit(os.getpid())
        atexit.register(self.at_the_end)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    def at_the_end(self):
        os.kill(os.getpid(), signal.SIGTERM)
        self.done.touch()


@dataclass(frozen=True)
class TerminatedLate(TerminatedTwice):
    """Gets SIGTERM in an exit handler, after its parent has ended."""

    def __call__(self, emit):
        atexit.register(self.at_the_end)
