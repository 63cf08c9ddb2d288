"""A pool of Ray actors, on this machine or a cluster."""

import contextlib
import pickle
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.base.errors import SluiceError, TrainingFailed
from sluice.cluster.jobs import (
    JobMessage,
    JobProgress,
    PoolJob,
    RetryCounter,
    WorkerLost,
    decode_message,
)
from sluice.cluster.process import WORKER_ENVIRONMENT, worker_sys_path
from sluice.cluster.ray_session import count_actors, join_ray
from sluice.cluster.settings import ComputeSettings
from sluice.cluster.shared_folders import ProbeFiles, folder_not_shared, write_probe_files

_START_S = 120.0
"""Longest wait for the first actor. An actor imports torch when it starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    actor: Any
    key: Hashable
    job: bytes


class RayPool:
    """Actors that are started once and run one job after another.

    A job whose actor or machine was lost runs again on another actor, up to ``compute.retries``
    times. Progress messages are fetched by a second remote call while the job runs, because Ray's
    streaming generators do not work through 'ray://' addresses.
    """

    def __init__(
        self, ray: Any, compute: ComputeSettings, *, probe_files: ProbeFiles, imports: Sequence[str]
    ) -> None:
        self._ray, self._retries = ray, compute.retries
        self._make = _actor_type(ray, compute)
        self._options = (worker_sys_path(), tuple(imports), probe_files)
        self._retry_counter = RetryCounter(compute.retries)
        self._starting: dict[Any, Any] = {}
        """Starting actors by the reference of their first call."""
        self._idle: list[Any] = []
        self._busy: dict[Any, _Running] = {}
        """Running jobs by the reference that resolves to their next messages."""
        self._retries_due: deque[tuple[Hashable, bytes]] = deque()
        self._received: deque[JobMessage | SluiceError] = deque()
        self._failed_starts = 0

    def add(self) -> None:
        """Start one more actor."""
        actor = self._make.remote(*self._options)
        self._starting[actor.check_folders.remote()] = actor

    def has_capacity(self) -> bool:
        """Return whether an actor is idle and no job waits for a retry."""
        return len(self._idle) > len(self._retries_due)

    def submit(self, key: Hashable, job: PoolJob) -> None:
        """Start a job on an idle actor."""
        self._run(key, pickle.dumps(job))

    def next_message(self) -> JobMessage | None:
        """Wait for the next message of a job, or until another actor has started.

        Raises:
            TrainingFailed: No actor can start.
            SettingsError: A machine does not share the folders.
            SluiceError: Raised by a job.
        """
        while self._retries_due and self._idle:
            self._run(*self._retries_due.popleft())
        if not self._received:
            timeout = None if self._busy else _START_S
            answers = [*self._busy, *self._starting]
            done, _ = self._ray.wait(answers, num_returns=1, timeout=timeout)
            if not done:
                raise _no_worker(f"none started within {_START_S:g} s")
            if done[0] in self._starting:
                self._finish_start(done[0])
                return None
            self._receive(done[0])
        received = self._received.popleft()
        if isinstance(received, SluiceError):
            raise received
        return received

    def close(self) -> None:
        """Kill all actors."""
        running = [each.actor for each in self._busy.values()]
        for actor in [*self._starting.values(), *self._idle, *running]:
            self._ray.kill(actor)

    def _run(self, key: Hashable, job: bytes) -> None:
        running = _Running(actor=self._idle.pop(), key=key, job=job)
        self._busy[running.actor.next_messages.remote(job)] = running

    def _finish_start(self, answer: Any) -> None:
        actor = self._starting.pop(answer)
        try:
            missing = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            self._failed_starts += 1
            if self._failed_starts > self._retries:
                raise _no_worker(str(error).strip().splitlines()[-1]) from error
            self.add()
            return
        if missing is not None:
            self._ray.kill(actor)
            raise folder_not_shared(*missing)
        self._idle.append(actor)

    def _receive(self, answer: Any) -> None:
        running = self._busy.pop(answer)
        try:
            messages = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            self._received.append(self._lost(running, error))
            return
        for content in messages:
            try:
                self._received.append(decode_message(running.key, content))
            except SluiceError as error:
                self._received.append(error)
        if isinstance(self._received[-1], JobProgress):
            self._busy[running.actor.next_messages.remote(None)] = running
        else:
            self._idle.append(running.actor)

    def _lost(self, running: _Running, error: Exception) -> WorkerLost:
        # An actor that cannot be reached may still run, and two actors must not run one job.
        self._ray.kill(running.actor)
        self.add()
        lost = self._retry_counter.count(
            running.key,
            f"worker on Ray was lost ({type(error).__name__})",
            "Most likely its memory ran out, or its machine was lost.",
        )
        if lost.will_retry:
            self._retries_due.append((running.key, running.job))
        return lost


@contextlib.contextmanager
def open_ray_pool(
    compute: ComputeSettings, *, max_workers: int, imports: Sequence[str], folders: Sequence[Path]
) -> Iterator[RayPool]:
    """Start or join Ray with up to ``max_workers`` actors; stop what was started at the end.

    Args:
        compute: Cluster address, and the resources that each actor reserves.
        max_workers: Maximum number of jobs at a time.
        imports: Modules that an actor imports when it starts.
        folders: Folders through which jobs exchange files; every actor must see the same ones.

    Raises:
        SettingsError: The cluster cannot be reached, or has fewer resources than one job reserves.
        StorageError: A folder cannot be written.
    """
    with join_ray(compute) as ray, write_probe_files(folders) as probe_files:
        count = min(max_workers, count_actors(ray, compute))
        pool = RayPool(ray, compute, probe_files=probe_files, imports=imports)
        try:
            for _ in range(count):
                pool.add()
            yield pool
        finally:
            pool.close()


def _no_worker(why: str) -> TrainingFailed:
    return TrainingFailed(
        f"No Ray worker could start: {why}.",
        cause="The machine has no memory or processes left, other jobs occupy the cluster, or a "
        "node cannot import sluice.",
        fix="Read the worker logs in Ray's session folder. On a cluster, install the same version "
        "of sluice on every node.",
    )


def _actor_type(ray: Any, compute: ComputeSettings) -> Any:
    # Ray pickles a nested class by value, so a worker needs only its path to import the modules of
    # the jobs.
    class Worker:
        def __init__(
            self, path: list[str], imports: tuple[str, ...], probe_files: ProbeFiles
        ) -> None:
            import importlib
            import queue
            import sys

            sys.path.extend(part for part in path if part not in sys.path)
            for name in imports:
                importlib.import_module(name)
            self.probe_files = probe_files
            self.messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()

        def check_folders(self) -> tuple[Path, str] | None:
            import socket

            from sluice.cluster.shared_folders import first_missing_folder

            folder = first_missing_folder(self.probe_files)
            return None if folder is None else (folder, socket.gethostname())

        def next_messages(self, job: bytes | None) -> list[bytes]:
            # In a separate thread, so that messages can be fetched while the job runs.
            import threading

            if job is not None:
                threading.Thread(target=self.run, args=(job,), daemon=True).start()
            messages = [self.messages.get()]
            while not self.messages.empty():
                messages.append(self.messages.get())
            return messages

        def run(self, job: bytes) -> None:
            import os
            import traceback

            from sluice.cluster.jobs import run_job

            try:
                run_job(job, self.messages.put)
            except BaseException:  # process boundary: the actor ends as a local process would
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
