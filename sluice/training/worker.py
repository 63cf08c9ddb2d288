"""A process that fits one unit after another for the process that started it.

It is started by ``python -c`` rather than by ``multiprocessing``, which would run the caller's
main module again in every worker: that costs seconds under Dagster and breaks in a script
without a main guard.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import sluice
from sluice.errors import SluiceError, TrainingFailed
from sluice.failfast.user_code import place_of
from sluice.training.members import Member
from sluice.training.unit import UnitEvent, UnitSpec, train_unit, utc_now

# Ctrl-C reaches every process of a terminal; only the parent decides what it means. So it is
# ignored from the first line on, before the imports that take seconds. SIGTERM, by which the
# parent ends a worker, becomes an exception: a file half written is removed on the way out.
_START = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); "
    "sys.path[:] = {path!r}; from sluice.training.worker import serve; serve({handle})"
)
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

_GRACE_S = 3.0
"""How long a worker may take to clean up: it looks up from its work after every operation."""

Message = UnitEvent | Member | SluiceError


@dataclass(slots=True)
class Worker:
    """The parent's side of one process."""

    process: "subprocess.Popen[bytes]"
    pipe: "Connection[UnitSpec, Message]"
    unit: UnitSpec | None = None
    """What it is fitting now."""

    @classmethod
    def start(cls) -> "Worker":
        """Start a process; it imports torch while it waits for its first unit."""
        here, there = Pipe()
        package = str(Path(sluice.__file__).parent.parent)
        path = [os.path.abspath(folder) for folder in sys.path]
        start = _START.format(path=[*path, package], handle=there.fileno())
        with there:
            process = subprocess.Popen(
                [sys.executable, "-c", start],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_ONE_THREAD, "PYTHONHASHSEED": "0"},
            )
        return cls(process=process, pipe=here)

    def give(self, unit: UnitSpec) -> None:
        """Send the next unit to fit."""
        self.unit = unit
        try:
            self.pipe.send(unit)
        except OSError:
            raise self.died() from None

    def receive(self) -> Message:
        """Return the next message.

        Raises:
            TrainingFailed: The process is gone.
        """
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            raise self.died() from None

    def died(self) -> TrainingFailed:
        """Say how the process ended and what it was doing."""
        status = self.process.wait()
        what = self.unit.name if self.unit else "A worker that was starting"
        if status < 0:
            return TrainingFailed(
                f"{what}: its process was ended by signal {-status}.",
                cause="Most likely memory ran out and the system killed it."
                if status == -9
                else "Somebody stopped it, or a library crashed.",
                fix="Lower workers or batch_rows if memory is short, then run again: finished "
                "units are kept and this one goes on from its last checkpoint.",
            )
        return TrainingFailed(
            f"{what}: its process ended with status {status} and no answer.",
            cause="It could not start, or the workload's code ended the process.",
            fix="Look at the output above, or run with one worker to see the error in place.",
        )


def stop(workers: Sequence[Worker]) -> None:
    """End all processes at once; what they have checkpointed stays."""
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        try:
            worker.process.wait(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
        worker.pipe.close()


def serve(handle: int) -> None:
    """Fit units until the parent closes its end; run in the worker's process."""
    pipe: Connection[Message, UnitSpec] = Connection(handle)
    try:
        while True:
            pipe.send(answer(pipe.recv(), pipe.send))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent is gone


def answer(
    unit: UnitSpec,
    on_event: Callable[[UnitEvent], None],
    clock: Callable[[], datetime] = utc_now,
) -> Member | SluiceError:
    """Fit one unit; return its member, or the error that names it."""
    try:
        return train_unit(unit, on_event, clock=clock)
    except SluiceError as error:
        return type(error)(f"{unit.name}: {error.what}", cause=error.cause, fix=error.fix)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:  # the edge of the process: the user's code may raise anything
        return TrainingFailed(
            f"{unit.name}: {type(error).__name__}: {error} (raised {place_of(error)}).",
            cause="The code of the workload or the model raised while a unit was fitted.",
            fix="Correct the named line; the POC gate shows most such errors within seconds.",
        )
