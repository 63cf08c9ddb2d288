"""A process that runs one job after another for the process that started it.

It is started by ``python -c`` rather than by ``multiprocessing``, which would run the caller's
main module again in every worker: that costs seconds under Dagster and breaks in a script
without a main guard.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import sluice
from sluice.cluster.jobs import run_job

# Ctrl-C reaches every process of a terminal; only the parent decides what it means. So it is
# ignored from the first line on, before the imports that take seconds. SIGTERM, by which the
# parent ends a worker, becomes an exception: a file half written is removed on the way out. A
# second one is not heard: it would be raised in what libraries do at the end of a process.
_START = """
import signal, sys
def end(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, end)
sys.path[:] = {path!r}
import {imports}
from sluice.cluster.process import serve
serve({handle})
"""
WORKER_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "PYTHONHASHSEED": "0",
}
"""One thread and one order of sets, wherever a worker runs: both may change bits."""

_GRACE_S = 3.0
"""How long a worker may take to clean up: it looks up from its work after every operation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The parent's side of one process."""

    process: "subprocess.Popen[bytes]"
    pipe: "Connection[bytes, bytes]"

    @classmethod
    def start(cls, imports: Sequence[str]) -> "Process":
        """Start a process; it imports these modules while it waits for its first job."""
        here, there = Pipe()
        start = _START.format(path=worker_path(), imports=", ".join(imports), handle=there.fileno())
        with there:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", start],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **WORKER_ENVIRONMENT},
            )
        return cls(process=process, pipe=here)

    def how_it_ended(self) -> tuple[str, str]:
        """Wait for its end; return what happened, to follow 'its', and the likely cause."""
        status = self.process.wait()
        if status == -9:
            cause = "Most likely memory ran out and the system killed it."
        elif status < 0:
            cause = "Somebody stopped it, or a library crashed."
        else:
            cause = "It could not start, or the workload's code ended the process."
        if status < 0:
            return f"process was ended by signal {-status}", cause
        return f"process ended with status {status} and no answer", cause


def worker_path() -> list[str]:
    """Return Python's path for a worker: that of this process, and where this package lies."""
    package = str(Path(sluice.__file__).parent.parent)
    return [*(os.path.abspath(folder) for folder in sys.path), package]


def stop(processes: Sequence[Process]) -> None:
    """End all processes at once; what they have checkpointed stays."""
    for each in processes:
        each.process.terminate()
    for each in processes:
        try:
            each.process.wait(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            each.process.kill()
            each.process.wait()
        each.pipe.close()


def serve(handle: int) -> None:
    """Run jobs until the parent closes its end; called in the worker's process."""
    pipe: Connection[bytes, bytes] = Connection(handle)
    try:
        while True:
            run_job(pipe.recv_bytes(), pipe.send_bytes)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # The parent is gone. A SIGTERM is late now: the process ends anyway.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
