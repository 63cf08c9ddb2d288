"""A worker process that runs one job after another for its parent process.

It is started with ``python -c`` and not with ``multiprocessing``, which would run the parent's main
module again in every worker: that costs seconds under Dagster and breaks in a script without a main
guard.
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

# Ctrl-C reaches every process of a terminal, and only the parent handles it. The worker ignores it
# from its first line on, before imports that take seconds. SIGTERM, with which the parent stops a
# worker, becomes an exception, so that a partly written file is removed. A second SIGTERM is
# ignored: it would be raised inside exit handlers of libraries.
_START_CODE = """
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
"""One thread and a fixed hash seed in every worker: both can change the bits of a result."""

_STOP_TIMEOUT_S = 3.0
"""Time a worker may take to clean up [s]. Signals are handled between two operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProcess:
    """The parent's handle of one worker process."""

    process: "subprocess.Popen[bytes]"
    pipe: "Connection[bytes, bytes]"

    @classmethod
    def start(cls, imports: Sequence[str]) -> "WorkerProcess":
        """Start a process that imports ``imports`` while it waits for its first job."""
        parent_end, child_end = Pipe()
        start = _START_CODE.format(
            path=worker_sys_path(), imports=", ".join(imports), handle=child_end.fileno()
        )
        with child_end:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", start],
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **WORKER_ENVIRONMENT},
            )
        return cls(process=process, pipe=parent_end)

    def exit_reason(self) -> tuple[str, str]:
        """Wait for the exit; return a description that follows 'its', and the likely cause."""
        status = self.process.wait()
        if status == -9:
            cause = "Most likely memory ran out and the system killed it."
        elif status < 0:
            cause = "Another program stopped it, or a library crashed."
        else:
            cause = "It could not start, or the workload's code called exit."
        if status < 0:
            return f"process was ended by signal {-status}", cause
        return f"process ended with status {status} and no result", cause


def worker_sys_path() -> list[str]:
    """Return ``sys.path`` for a worker: that of this process, and the folder of this package."""
    package = str(Path(sluice.__file__).parent.parent)
    return [*(os.path.abspath(folder) for folder in sys.path), package]


def stop(processes: Sequence[WorkerProcess]) -> None:
    """Stop all processes; their checkpoints are kept."""
    for each in processes:
        each.process.terminate()
    for each in processes:
        try:
            each.process.wait(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            each.process.kill()
            each.process.wait()
        each.pipe.close()


def serve(handle: int) -> None:
    """Run jobs until the parent closes the pipe. Called in the worker process."""
    pipe: Connection[bytes, bytes] = Connection(handle)
    try:
        while True:
            run_job(pipe.recv_bytes(), pipe.send_bytes)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # The parent has ended or closed the pipe. A late SIGTERM is ignored: the process ends
        # anyway.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
