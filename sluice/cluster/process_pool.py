"""A pool of processes on this machine, for work that does not need Ray.

Starting Ray takes seconds and half a gigabyte of memory, without a benefit on a single machine.
"""

import contextlib
import pickle
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait

from sluice.base.cpu_count import count_cores
from sluice.cluster.jobs import JobMessage, JobResult, PoolJob, RetryCounter, decode_message
from sluice.cluster.process import WorkerProcess, stop_processes
from sluice.cluster.settings import ComputeSettings
from sluice.cluster.slots import count_slots


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunningJob:
    worker: WorkerProcess
    key: Hashable
    pickled_job: bytes
    """The pickled job, which is sent to another process if the process is lost."""


class ProcessPool:
    """Processes that are started once and run one job after another.

    A job whose process was lost runs again in a new process, up to ``retries`` times.
    """

    def __init__(self, *, retries: int, imports: Sequence[str]) -> None:
        self._imports = imports
        self._retry_counter = RetryCounter(retries)
        self._running_jobs: dict[object, _RunningJob] = {}
        """Running jobs, by the parent's end of the pipe of their process."""
        self._idle_workers: list[WorkerProcess] = []
        self._workers: list[WorkerProcess] = []
        """All processes, idle or busy."""

    def add(self) -> None:
        """Start one more process."""
        worker = WorkerProcess.start(self._imports)
        self._workers.append(worker)
        self._idle_workers.append(worker)

    def has_capacity(self) -> bool:
        """Return whether a process is idle."""
        return bool(self._idle_workers)

    def submit(self, key: Hashable, job: PoolJob) -> None:
        """Start a job in an idle process."""
        self._send(key, pickle.dumps(job))

    def next_message(self) -> JobMessage:
        """Wait for the next message of a job.

        Raises:
            SluiceError: Raised by a job.
        """
        assert self._running_jobs, "no job is running"
        ready_pipes = wait([running_job.worker.pipe for running_job in self._running_jobs.values()])
        running_job = self._running_jobs[ready_pipes[0]]
        try:
            content = running_job.worker.pipe.recv_bytes()
        except (EOFError, OSError):
            return self._replace_lost(running_job)
        message = decode_message(running_job.key, content)
        if isinstance(message, JobResult):
            del self._running_jobs[running_job.worker.pipe]
            self._idle_workers.append(running_job.worker)
        return message

    def close(self) -> None:
        """Stop all processes."""
        stop_processes(self._workers)

    def _send(self, key: Hashable, pickled_job: bytes) -> None:
        worker = self._idle_workers.pop()
        self._running_jobs[worker.pipe] = _RunningJob(
            worker=worker, key=key, pickled_job=pickled_job
        )
        # If the process has ended, sending fails. ``next_message`` then finds the pipe closed.
        with contextlib.suppress(OSError):
            worker.pipe.send_bytes(pickled_job)

    def _replace_lost(self, running_job: _RunningJob) -> JobMessage:
        """Replace a lost process, and run its job again unless its retries are exhausted."""
        del self._running_jobs[running_job.worker.pipe]
        self._workers.remove(running_job.worker)
        description, cause = running_job.worker.exit_reason()
        running_job.worker.pipe.close()
        message = self._retry_counter.count_lost_worker(running_job.key, description, cause)
        self.add()
        if message.will_retry:
            self._send(running_job.key, running_job.pickled_job)
        return message


@contextlib.contextmanager
def open_process_pool(
    compute: ComputeSettings, *, max_workers: int, imports: Sequence[str]
) -> Iterator[ProcessPool]:
    """Start as many processes as fit, up to ``max_workers``; stop them at the end of the context.

    Args:
        compute: Settings; ``cpus_per_worker`` and ``workers`` limit the number of processes.
        max_workers: Maximum number of processes, such as the number of jobs.
        imports: Modules that a process imports before its first job.

    Raises:
        SettingsError: This machine has fewer resources than one job reserves.
    """
    num_processes = min(max_workers, count_processes(compute))
    pool = ProcessPool(retries=compute.retries, imports=imports)
    try:
        for _ in range(num_processes):
            pool.add()
        yield pool
    finally:
        pool.close()


def count_processes(compute: ComputeSettings) -> int:
    """Return the number of processes that fit on the cores of this process, at most ``workers``.

    Raises:
        SettingsError: Not even one process fits.
    """
    return count_slots([{"CPU": float(count_cores())}], compute)
