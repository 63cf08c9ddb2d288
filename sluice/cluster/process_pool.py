"""A pool of processes on this machine, for what does not need Ray.

Ray would take seconds to start and half a gigabyte of memory, and give nothing here.
"""

import contextlib
import pickle
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait

from sluice.base.cpu_count import count_cores
from sluice.cluster.jobs import Arrival, Done, Job, Losses, read_news
from sluice.cluster.places import count_places
from sluice.cluster.process import Process, stop
from sluice.cluster.settings import ComputeSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    process: Process
    key: Hashable
    job: bytes


class ProcessPool:
    """Processes that are started once and run one job after another.

    A job whose process was lost runs again on a new one, up to ``retries`` times.
    """

    def __init__(self, *, retries: int, imports: Sequence[str]) -> None:
        self._imports = imports
        self._losses = Losses(retries)
        self._busy: dict[object, _Running] = {}
        """By the parent's end of the pipe."""
        self._idle: list[Process] = []
        self._all: list[Process] = []

    def add(self) -> None:
        """Start one more process."""
        process = Process.start(self._imports)
        self._all.append(process)
        self._idle.append(process)

    def free(self) -> bool:
        """Return whether a process is idle."""
        return bool(self._idle)

    def give(self, key: Hashable, job: Job) -> None:
        """Start a job on an idle process."""
        self._send(key, pickle.dumps(job))

    def next(self) -> Arrival:
        """Wait for news of a job.

        Raises:
            SluiceError: As a job raised it.
        """
        assert self._busy, "nothing was given"
        ready = wait([running.process.pipe for running in self._busy.values()])
        running = self._busy[ready[0]]
        try:
            content = running.process.pipe.recv_bytes()
        except (EOFError, OSError):
            return self._lost(running)
        news = read_news(running.key, content)
        if isinstance(news, Done):
            del self._busy[running.process.pipe]
            self._idle.append(running.process)
        return news

    def close(self) -> None:
        """End all processes."""
        stop(self._all)

    def _send(self, key: Hashable, job: bytes) -> None:
        process = self._idle.pop()
        self._busy[process.pipe] = _Running(process=process, key=key, job=job)
        # One that is gone is seen by ``next``: its end of the pipe is closed.
        with contextlib.suppress(OSError):
            process.pipe.send_bytes(job)

    def _lost(self, running: _Running) -> Arrival:
        del self._busy[running.process.pipe]
        self._all.remove(running.process)
        what, cause = running.process.how_it_ended()
        running.process.pipe.close()
        lost = self._losses.count(running.key, what, cause)
        self.add()
        if lost.again:
            self._send(running.key, running.job)
        return lost


@contextlib.contextmanager
def open_process_pool(
    compute: ComputeSettings, *, most: int, imports: Sequence[str]
) -> Iterator[ProcessPool]:
    """Start at most ``most`` processes, as many as fit; end them on the way out.

    Args:
        compute: Its ``cpus_per_worker`` says how many fit on the cores.
        most: Jobs there are.
        imports: Modules that a process imports before its first job.

    Raises:
        SettingsError: This machine has not what one job reserves.
    """
    count = min(most, count_processes(compute))
    pool = ProcessPool(retries=compute.retries, imports=imports)
    try:
        for _ in range(count):
            pool.add()
        yield pool
    finally:
        pool.close()


def count_processes(compute: ComputeSettings) -> int:
    """Return how many processes fit on the cores that this process may use.

    Raises:
        SettingsError: Not one.
    """
    return count_places([{"CPU": float(count_cores())}], compute)
