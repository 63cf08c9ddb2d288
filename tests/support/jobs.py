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
    """Emits its process id and two environment variables, then waits for ``released_file``."""

    released_file: Path

    def __call__(self, emit):
        names = ("OMP_NUM_THREADS", "PYTHONHASHSEED")
        emit((os.getpid(), {name: os.environ.get(name) for name in names}))
        while not self.released_file.exists():
            time.sleep(0.02)
        return "released"


@dataclass(frozen=True)
class Fail:
    """Raises an error of the named class."""

    error_name: str

    def __call__(self, emit):
        raise {
            "ContractError": ContractError("the rows are wrong", fix="Correct them."),
            "ValueError": ValueError("the user's bug"),
            "SystemExit": SystemExit(7),
        }[self.error_name]


@dataclass(frozen=True)
class DieInFirstCalls:
    """Ends its process in each of the first ``num_calls`` calls. A file counts the calls."""

    num_calls: int
    count_file: Path

    def __call__(self, emit):
        with self.count_file.open("a") as file:
            file.write("x")
        if len(self.count_file.read_text()) <= self.num_calls:
            os._exit(3)
        return os.getpid()


@dataclass(frozen=True)
class TerminatedTwice:
    """Receives SIGTERM while it runs, and again in an exit handler, which then creates a file."""

    done_file: Path

    def __call__(self, emit):
        emit(os.getpid())
        atexit.register(self.on_exit)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    def on_exit(self):
        os.kill(os.getpid(), signal.SIGTERM)
        self.done_file.touch()


@dataclass(frozen=True)
class TerminatedLate(TerminatedTwice):
    """Receives SIGTERM only in an exit handler of its process, after the parent has ended."""

    def __call__(self, emit):
        atexit.register(self.on_exit)
