"""A pool of Ray actors that run jobs, on this machine or a cluster."""

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
from sluice.cluster.ray_session import count_actor_slots, join_ray, last_line
from sluice.cluster.settings import ComputeSettings
from sluice.cluster.shared_folders import ProbeFiles, folder_not_shared_error, write_probe_files

_START_TIMEOUT_S = 120.0
"""Maximum wait for the start of an actor while no job runs [s]. An actor imports torch at its
start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunningJob:
    actor: Any
    key: Hashable
    pickled_job: bytes
    """The pickled job, which runs again on another actor if the actor is lost."""


class RayPool:
    """Actors that are started once and run one job after another.

    A job whose actor or machine was lost runs again on another actor, up to ``compute.retries``
    times. While the job runs, its messages are fetched by one remote call after another, because
    Ray's streaming generators do not work through 'ray://' addresses.
    """

    def __init__(
        self, ray: Any, compute: ComputeSettings, *, probe_files: ProbeFiles, imports: Sequence[str]
    ) -> None:
        self._ray, self._retries = ray, compute.retries
        self._actor_type = _make_actor_type(ray, compute)
        self._actor_arguments = (worker_sys_path(), tuple(imports), probe_files)
        self._retry_counter = RetryCounter(compute.retries)
        self._starting_actors: dict[Any, tuple[Any, int]] = {}
        """Actors that are starting, each with the number of failed starts before it, by the object
        reference of the actor's first call."""
        self._idle_actors: list[Any] = []
        self._running_jobs: dict[Any, _RunningJob] = {}
        """Running jobs, by the object reference that resolves to their next messages."""
        self._jobs_to_retry: deque[tuple[Hashable, bytes]] = deque()
        """Keys and pickled jobs that run again when an actor is idle."""
        self._undelivered_messages: deque[JobMessage | SluiceError] = deque()
        """Messages and errors of jobs that ``next_message`` has not returned or raised yet."""

    def add(self, *, num_failed_starts: int = 0) -> None:
        """Start one more actor.

        Args:
            num_failed_starts: Number of failed starts before this one: the actor replaces an actor
                that failed to start, which may itself have replaced such an actor.
        """
        actor = self._actor_type.remote(*self._actor_arguments)
        self._starting_actors[actor.check_folders.remote()] = (actor, num_failed_starts)

    def has_capacity(self) -> bool:
        """Return whether more actors are idle than jobs wait for a retry."""
        return len(self._idle_actors) > len(self._jobs_to_retry)

    def submit(self, key: Hashable, job: PoolJob) -> None:
        """Start a job on an idle actor."""
        self._run(key, pickle.dumps(job))

    def next_message(self) -> JobMessage | None:
        """Wait for the next message of a job.

        Return None after another actor has started, or was replaced because its start failed.

        Raises:
            TrainingFailed: No actor can start.
            SettingsError: A machine does not share the folders.
            SluiceError: Raised by a job.
        """
        while self._jobs_to_retry and self._idle_actors:
            self._run(*self._jobs_to_retry.popleft())
        if not self._undelivered_messages:
            timeout = None if self._running_jobs else _START_TIMEOUT_S
            references = [*self._running_jobs, *self._starting_actors]
            ready_references, _ = self._ray.wait(references, num_returns=1, timeout=timeout)
            if not ready_references:
                raise _no_worker_error(f"none started within {_START_TIMEOUT_S:g} s")
            if ready_references[0] in self._starting_actors:
                self._finish_start(ready_references[0])
                return None
            self._receive(ready_references[0])
        message_or_error = self._undelivered_messages.popleft()
        if isinstance(message_or_error, SluiceError):
            raise message_or_error
        return message_or_error

    def close(self) -> None:
        """Kill all actors."""
        busy_actors = [running_job.actor for running_job in self._running_jobs.values()]
        starting_actors = [actor for actor, _ in self._starting_actors.values()]
        for actor in [*starting_actors, *self._idle_actors, *busy_actors]:
            self._ray.kill(actor)

    def _run(self, key: Hashable, pickled_job: bytes) -> None:
        running_job = _RunningJob(actor=self._idle_actors.pop(), key=key, pickled_job=pickled_job)
        self._running_jobs[running_job.actor.next_messages.remote(pickled_job)] = running_job

    def _finish_start(self, reference: Any) -> None:
        """Add an actor that has started to the idle actors; replace it if its start failed."""
        actor, num_failed_starts = self._starting_actors.pop(reference)
        try:
            folder_and_host = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            # Failed starts are counted for each actor, because one lost machine may end all actors
            # that are starting.
            if num_failed_starts == self._retries:
                raise _no_worker_error(last_line(error)) from error
            self.add(num_failed_starts=num_failed_starts + 1)
            return
        if folder_and_host is not None:
            self._ray.kill(actor)
            raise folder_not_shared_error(*folder_and_host)
        self._idle_actors.append(actor)

    def _receive(self, reference: Any) -> None:
        """Decode the next messages of a running job; request more unless the job has ended."""
        running_job = self._running_jobs.pop(reference)
        try:
            messages = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self._undelivered_messages.append(self._replace_lost(running_job, error))
            return
        for content in messages:
            try:
                self._undelivered_messages.append(decode_message(running_job.key, content))
            except SluiceError as error:
                self._undelivered_messages.append(error)
        if isinstance(self._undelivered_messages[-1], JobProgress):
            self._running_jobs[running_job.actor.next_messages.remote(None)] = running_job
        else:
            self._idle_actors.append(running_job.actor)

    def _replace_lost(self, running_job: _RunningJob, error: Exception) -> WorkerLost:
        """Replace a lost actor, and queue its job again unless its retries are exhausted."""
        # Kill the actor: it may still run although it cannot be reached, and two actors must not
        # run the same job.
        self._ray.kill(running_job.actor)
        self.add()
        message = self._retry_counter.count_lost_worker(
            running_job.key,
            f"worker on Ray was lost ({type(error).__name__})",
            "The memory of the worker probably ran out, or its machine was lost.",
        )
        if message.will_retry:
            self._jobs_to_retry.append((running_job.key, running_job.pickled_job))
        return message


@contextlib.contextmanager
def open_ray_pool(
    compute: ComputeSettings, *, max_workers: int, imports: Sequence[str], folders: Sequence[Path]
) -> Iterator[RayPool]:
    """Start or join Ray, and start up to ``max_workers`` actors; stop them at the end.

    Ray itself is stopped only if this function started it.

    Args:
        compute: Cluster address, and the resources that each actor reserves.
        max_workers: Maximum number of jobs at a time.
        imports: Modules that an actor imports when it starts.
        folders: Folders through which jobs exchange files. Every actor must see the same folders.

    Raises:
        SettingsError: The cluster cannot be reached, or has fewer resources than one job reserves.
        StorageError: A folder cannot be written.
    """
    with join_ray(compute) as ray, write_probe_files(folders) as probe_files:
        num_actors = min(max_workers, count_actor_slots(ray, compute))
        pool = RayPool(ray, compute, probe_files=probe_files, imports=imports)
        try:
            for _ in range(num_actors):
                pool.add()
            yield pool
        finally:
            pool.close()


def _no_worker_error(reason: str) -> TrainingFailed:
    return TrainingFailed(
        f"No Ray worker could start: {reason}.",
        cause="The machine has no memory or processes left, other jobs occupy the cluster, or a "
        "node cannot import sluice.",
        fix="Read the worker logs in Ray's session folder. On a cluster, install the same version "
        "of sluice on every node.",
    )


def _make_actor_type(ray: Any, compute: ComputeSettings) -> Any:
    # The class is nested, because Ray pickles nested classes by value. A worker process can then
    # load the class before ``sys.path`` contains the folder of sluice.
    class Worker:
        def __init__(
            self, sys_path: list[str], imports: tuple[str, ...], probe_files: ProbeFiles
        ) -> None:
            import importlib
            import queue
            import sys

            sys.path.extend(folder for folder in sys_path if folder not in sys.path)
            for name in imports:
                importlib.import_module(name)
            self.probe_files = probe_files
            self.messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()

        def check_folders(self) -> tuple[Path, str] | None:
            import socket

            from sluice.cluster.shared_folders import first_missing_folder

            folder = first_missing_folder(self.probe_files)
            return None if folder is None else (folder, socket.gethostname())

        def next_messages(self, pickled_job: bytes | None) -> list[bytes]:
            # A new job runs in a separate thread, so that messages can be fetched while it runs.
            # Without a job, the next messages of the running job are returned.
            import threading

            if pickled_job is not None:
                threading.Thread(target=self.run, args=(pickled_job,), daemon=True).start()
            messages = [self.messages.get()]
            while not self.messages.empty():
                messages.append(self.messages.get())
            return messages

        def run(self, pickled_job: bytes) -> None:
            import os
            import traceback

            from sluice.cluster.jobs import run_job

            try:
                run_job(pickled_job, self.messages.put)
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
