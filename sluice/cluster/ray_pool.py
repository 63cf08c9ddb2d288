"""A pool of Ray actors, on this machine or a cluster."""

import contextlib
import pickle
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.base.errors import SluiceError, TrainingFailed
from sluice.cluster.jobs import Arrival, Job, Losses, Lost, Told, read_news
from sluice.cluster.process import WORKER_ENVIRONMENT, worker_path
from sluice.cluster.ray_session import count_actors, join_ray
from sluice.cluster.settings import ComputeSettings
from sluice.cluster.shared_folders import Marks, marked, not_shared

_START_S = 120.0
"""A worker imports torch when it starts; this long without any worker is a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    actor: Any
    key: Hashable
    job: bytes


class RayPool:
    """Actors that are started once and run one job after another.

    A job whose actor or machine was lost runs again on another one, up to ``compute.retries``
    times. What a job tells is fetched by a second call while it runs, since Ray's own streams do
    not work through 'ray://' addresses.
    """

    def __init__(
        self, ray: Any, compute: ComputeSettings, *, marks: Marks, imports: Sequence[str]
    ) -> None:
        self._ray, self._retries = ray, compute.retries
        self._make = _actor_type(ray, compute)
        self._options = (worker_path(), tuple(imports), marks)
        self._losses = Losses(compute.retries)
        self._starting: dict[Any, Any] = {}
        """Actor by the answer that says it is there."""
        self._idle: list[Any] = []
        self._busy: dict[Any, _Running] = {}
        """By the answer that will be the next messages."""
        self._again: deque[tuple[Hashable, bytes]] = deque()
        self._arrived: deque[Arrival | SluiceError] = deque()
        self._failed_starts = 0

    def add(self) -> None:
        """Start one more actor."""
        actor = self._make.remote(*self._options)
        self._starting[actor.there.remote()] = actor

    def free(self) -> bool:
        """Return whether an actor is idle and no job waits to run again."""
        return len(self._idle) > len(self._again)

    def give(self, key: Hashable, job: Job) -> None:
        """Start a job on an idle actor."""
        self._run(key, pickle.dumps(job))

    def next(self) -> Arrival | None:
        """Wait for news of a job, or for an actor that is there.

        Raises:
            TrainingFailed: No actor starts.
            SettingsError: A machine does not share the folders.
            SluiceError: As a job raised it.
        """
        while self._again and self._idle:
            self._run(*self._again.popleft())
        if not self._arrived:
            timeout = None if self._busy else _START_S
            answers = [*self._busy, *self._starting]
            done, _ = self._ray.wait(answers, num_returns=1, timeout=timeout)
            if not done:
                raise _no_worker(f"none answered within {_START_S:g} s")
            if done[0] in self._starting:
                self._settle(done[0])
                return None
            self._receive(done[0])
        arrived = self._arrived.popleft()
        if isinstance(arrived, SluiceError):
            raise arrived
        return arrived

    def close(self) -> None:
        """End all actors."""
        running = [each.actor for each in self._busy.values()]
        for actor in [*self._starting.values(), *self._idle, *running]:
            self._ray.kill(actor)

    def _run(self, key: Hashable, job: bytes) -> None:
        running = _Running(actor=self._idle.pop(), key=key, job=job)
        self._busy[running.actor.work.remote(job)] = running

    def _settle(self, answer: Any) -> None:
        actor = self._starting.pop(answer)
        try:
            unseen = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            self._failed_starts += 1
            if self._failed_starts > self._retries:
                raise _no_worker(str(error).strip().splitlines()[-1]) from error
            self.add()
            return
        if unseen is not None:
            self._ray.kill(actor)
            raise not_shared(*unseen)
        self._idle.append(actor)

    def _receive(self, answer: Any) -> None:
        running = self._busy.pop(answer)
        try:
            news = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            self._arrived.append(self._lost(running, error))
            return
        for content in news:
            try:
                self._arrived.append(read_news(running.key, content))
            except SluiceError as error:
                self._arrived.append(error)
        if isinstance(self._arrived[-1], Told):
            self._busy[running.actor.work.remote(None)] = running
        else:
            self._idle.append(running.actor)

    def _lost(self, running: _Running, error: Exception) -> Lost:
        # One that cannot be reached may still run: the job must not be done twice at a time.
        self._ray.kill(running.actor)
        self.add()
        lost = self._losses.count(
            running.key,
            f"worker on Ray was lost ({type(error).__name__})",
            "Most likely its memory ran out, or its machine is gone.",
        )
        if lost.again:
            self._again.append((running.key, running.job))
        return lost


@contextlib.contextmanager
def open_ray_pool(
    compute: ComputeSettings, *, most: int, imports: Sequence[str], folders: Sequence[Path]
) -> Iterator[RayPool]:
    """Start or join Ray with at most ``most`` actors; end what was started on the way out.

    Args:
        compute: Where, and what every actor reserves.
        most: Jobs there can be at a time.
        imports: Modules that an actor imports when it starts.
        folders: Through which jobs exchange files; every actor must see the same ones.

    Raises:
        SettingsError: The cluster cannot be reached, or has not what one job reserves.
        StorageError: A folder cannot be written.
    """
    with join_ray(compute) as ray, marked(folders) as marks:
        count = min(most, count_actors(ray, compute))
        pool = RayPool(ray, compute, marks=marks, imports=imports)
        try:
            for _ in range(count):
                pool.add()
            yield pool
        finally:
            pool.close()


def _no_worker(why: str) -> TrainingFailed:
    return TrainingFailed(
        f"No Ray worker could start: {why}.",
        cause="The machine is out of memory or processes, others use the cluster, or a node "
        "cannot import sluice.",
        fix="Look at the worker logs in Ray's session folder; on a cluster install the same "
        "version of sluice on every node.",
    )


def _actor_type(ray: Any, compute: ComputeSettings) -> Any:
    # Inside a function Ray sends the class itself, so that a worker needs nothing but its path
    # to find the modules that the jobs come from.
    class Worker:
        def __init__(self, path: list[str], imports: tuple[str, ...], marks: Marks) -> None:
            import importlib
            import queue
            import sys

            sys.path.extend(part for part in path if part not in sys.path)
            for name in imports:
                importlib.import_module(name)
            self.marks = marks
            self.news: queue.SimpleQueue[bytes] = queue.SimpleQueue()

        def there(self) -> tuple[Path, str] | None:
            import socket

            from sluice.cluster.shared_folders import first_unseen

            folder = first_unseen(self.marks)
            return None if folder is None else (folder, socket.gethostname())

        def work(self, job: bytes | None) -> list[bytes]:
            # On a thread of its own, so that what it tells can be fetched while it runs.
            import threading

            if job is not None:
                threading.Thread(target=self.run, args=(job,), daemon=True).start()
            news = [self.news.get()]
            while not self.news.empty():
                news.append(self.news.get())
            return news

        def run(self, job: bytes) -> None:
            import os
            import traceback

            from sluice.cluster.jobs import run_job

            try:
                run_job(job, self.news.put)
            except BaseException:  # the edge of the process: it ends, as a local one would
                traceback.print_exc()
                os._exit(1)

    options: dict[str, Any] = {
        "num_cpus": compute.cpus_per_worker,
        "max_restarts": 0,
        "runtime_env": {"env_vars": WORKER_ENVIRONMENT},
    }
    if compute.gpus_per_worker:
        options["num_gpus"] = compute.gpus_per_worker
    return ray.remote(**options)(Worker)
