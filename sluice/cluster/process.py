"""A worker process that runs one job after another for its parent process.

The process is started with ``python -c`` and not with ``multiprocessing``, because
``multiprocessing`` runs the parent's main module again in every worker. That takes seconds under
Dagster, and fails in a script without a main guard.
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

# Ctrl-C sends SIGINT to every process of a terminal, but only the parent must handle it. The worker
# therefore ignores SIGINT from its first line on, before imports that take seconds. The parent
# stops a worker by SIGTERM, which is converted to an exception, so that partly written files are
# removed. A second SIGTERM is ignored, because it would be raised inside exit handlers of
# libraries.
_START_CODE = """
import signal, sys
def end(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, end)
sys.path[:] = {path!r}
from sluice.base.garbage_collection import collection_paused, skip_collection_at_exit
skip_collection_at_exit()
with collection_paused():
    import {imports}
    from sluice.cluster.process import serve
serve({pipe_fd})
"""
WORKER_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "PYTHONHASHSEED": "0",
}
"""Environment variables of every worker: one thread and a fixed hash seed. The number of threads
and the hash seed can change the rounding of a result, so they must be equal in all workers."""

_STOP_TIMEOUT_S = 3.0
"""A worker is killed if it has not exited this time after SIGTERM [s]. Python handles signals only
between bytecode instructions, so a long call in C delays the exit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProcess:
    """One worker process, as seen by its parent."""

    popen: "subprocess.Popen[bytes]"
    pipe: "Connection[bytes, bytes]"

    @classmethod
    def start(cls, imports: Sequence[str]) -> "WorkerProcess":
        """Start a process, which imports the modules ``imports`` before its first job."""
        parent_end, child_end = Pipe()
        start_code = _START_CODE.format(
            path=worker_sys_path(), imports=", ".join(imports), pipe_fd=child_end.fileno()
        )
        with child_end:
            popen = subprocess.Popen(
                [sys.executable, "-P", "-c", start_code],
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **WORKER_ENVIRONMENT},
            )
        return cls(popen=popen, pipe=parent_end)

    def exit_reason(self) -> tuple[str, str]:
        """Wait for the exit; return a description that can follow 'its', and the likely cause."""
        status = self.popen.wait()
        if status == -9:
            cause = "The memory probably ran out, so the system killed the process."
        elif status < 0:
            cause = "Another program stopped the process, or a library crashed."
        else:
            cause = "The process could not start, or the workload's code called exit."
        if status < 0:
            return f"process was ended by signal {-status}", cause
        return f"process ended with status {status} and no result", cause


def worker_sys_path() -> list[str]:
    """Return ``sys.path`` for a worker: the folders of this process and the folder with sluice."""
    package = str(Path(sluice.__file__).parent.parent)
    return [*(os.path.abspath(folder) for folder in sys.path), package]


def stop_processes(workers: Sequence[WorkerProcess]) -> None:
    """Stop all processes: first by SIGTERM, then by SIGKILL."""
    for worker in workers:
        worker.popen.terminate()
    for worker in workers:
        try:
            worker.popen.wait(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            worker.popen.kill()
            worker.popen.wait()
        worker.pipe.close()


def serve(pipe_fd: int) -> None:
    """Run jobs until the parent closes the pipe. This function runs in the worker process.

    Args:
        pipe_fd: File descriptor of the worker's end of the pipe.
    """
    pipe: Connection[bytes, bytes] = Connection(pipe_fd)
    try:
        while True:
            run_job(pipe.recv_bytes(), pipe.send_bytes)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # The parent has ended or closed the pipe. The process ends now, so a late SIGTERM is
        # ignored.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
