"""The one adapter to Ray: a pool of actors, on this machine or a cluster, that run segments.

Ray's own search engine is not used: it forgets the scheduler's state when the driver dies, starts
a process for every trial, and lets decisions depend on which worker was faster. Ray does here what
it does well: it places workers on machines and says when one died.
"""

import contextlib
import math
import os
import pickle
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sluice
from sluice.cluster.settings import ComputeSettings
from sluice.errors import SettingsError, SluiceError, TrainingFailed
from sluice.tuning.driver import failed
from sluice.tuning.objective import Objective
from sluice.tuning.records import Outcome, Segment

_START_S = 120.0
"""A worker imports torch when it starts; this long without any worker is a fault."""
_REACH_S = 5.0
"""A cluster's port answers at once or not at all. Ray itself waits minutes, then exits."""


class RayPool:
    """Actors that are started once and run one segment after another.

    A segment whose actor died runs again on another one, from its last checkpoint. Folders must be
    the same for all machines of a cluster.
    """

    def __init__(
        self, objective: Objective, folder: Path, compute: ComputeSettings, *, most: int
    ) -> None:
        self._folder, self._compute = folder, compute
        self._objective = pickle.dumps(objective)
        package = str(Path(sluice.__file__).parent.parent)
        self._path = [*(os.path.abspath(part) for part in sys.path), package]
        self._starting: dict[Any, Any] = {}
        """Actor by the answer that says it is there."""
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, Segment]] = {}
        """Actor and segment by the answer that will be the outcome."""
        self._again: list[Segment] = []
        self._tries: dict[tuple[int, int], int] = {}
        self._failed_starts = 0
        self._make = _actor_type(compute)
        for _ in range(_num_actors(compute, most)):
            self._start()

    def free(self) -> bool:
        """Return whether an actor is idle and no segment waits to run again."""
        return len(self._idle) > len(self._again)

    def give(self, segment: Segment) -> None:
        """Start a segment on an idle actor."""
        ray, actor = _ray(), self._idle.pop()
        content = ray.put(pickle.dumps((segment, self._folder)))
        self._busy[actor.run.remote(content)] = (actor, segment)

    def next(self) -> Outcome | None:
        """Wait for an outcome, or for an actor that is there.

        Raises:
            TrainingFailed: No actor starts.
            StorageError: As the worker met it.
        """
        ray = _ray()
        while self._again and self._idle:
            self.give(self._again.pop(0))
        timeout = None if self._busy else _START_S
        answers = [*self._busy, *self._starting]
        done, _ = ray.wait(answers, num_returns=1, timeout=timeout)
        if not done:
            raise _no_worker(f"none answered within {_START_S:g} s")
        if done[0] in self._starting:
            self._settle(done[0])
            return None
        return self._receive(done[0])

    def _start(self) -> None:
        actor = self._make.remote(self._path, self._objective)
        self._starting[actor.there.remote()] = actor

    def _settle(self, answer: Any) -> None:
        ray, actor = _ray(), self._starting.pop(answer)
        try:
            ray.get(answer)
        except ray.exceptions.RayError as error:
            self._failed_starts += 1
            if self._failed_starts > self._compute.retries:
                raise _no_worker(str(error).strip().splitlines()[-1]) from error
            self._start()
        else:
            self._idle.append(actor)

    def _receive(self, answer: Any) -> Outcome | None:
        ray, (actor, segment) = _ray(), self._busy.pop(answer)
        try:
            result = pickle.loads(ray.get(answer))
        except ray.exceptions.RayError as error:
            self._start()
            return self._try_again(segment, error)
        self._idle.append(actor)
        if isinstance(result, SluiceError):
            raise result
        assert isinstance(result, Outcome)
        return result

    def _try_again(self, segment: Segment, error: Exception) -> Outcome | None:
        tries = self._tries[segment.key] = self._tries.get(segment.key, 0) + 1
        if tries <= self._compute.retries:
            self._again.append(segment)
            return None
        return failed(
            segment,
            f"Its worker died {tries} times ({type(error).__name__}); most likely memory ran out.",
        )


@contextlib.contextmanager
def open_ray_pool(
    objective: Objective, folder: Path, compute: ComputeSettings, *, most: int
) -> Iterator[RayPool]:
    """Start or join Ray with at most ``most`` actors; end what was started on the way out.

    A Ray that runs in this process already is used and left running.

    Raises:
        SettingsError: The cluster cannot be reached, or has not what one trial reserves.
    """
    ray = _ray()
    own = not ray.is_initialized()
    if compute.address is not None:
        _require_reachable(compute.address)
        if not own:
            raise SettingsError(
                f"The search asks for the cluster at '{compute.address}', and Ray runs in this "
                f"process already.",
                fix="Leave compute.address out to use the running one, or call ray.shutdown first.",
            )
    if own:
        _join(compute)
    try:
        _require_resources(ray.cluster_resources(), compute)
        yield RayPool(objective, folder.absolute(), compute, most=most)
    finally:
        if own:
            ray.shutdown()


def _join(compute: ComputeSettings) -> None:
    ray = _ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unasked
    options = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if compute.address is None:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
            ray.init(address="local", num_cpus=cores, include_dashboard=False, **options)
        else:
            ray.init(address=compute.address, **options)
    except (OSError, ValueError, RuntimeError) as error:
        if compute.address is not None:
            raise _unreachable(compute.address, str(error)) from error
        raise SettingsError(
            f"Ray could not start on this machine: {error}.",
            fix="Free memory and processes; if a path is too long, set RAY_TMPDIR to a short one.",
        ) from error


def _require_reachable(address: str) -> None:
    found = re.fullmatch(r"(?:ray://)?\[?([^\[\]/]+?)\]?:(\d+)", address)
    if found is None:
        if address == "auto":
            return
        raise SettingsError(
            f"compute.address must be 'host:port', 'ray://host:port' or 'auto', got '{address}'.",
            fix="Correct it, or leave it out to use this machine.",
        )
    try:
        socket.create_connection((found[1], int(found[2])), timeout=_REACH_S).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(error)) from error


def _unreachable(address: str, why: str) -> SettingsError:
    return SettingsError(
        f"The Ray cluster at '{address}' cannot be reached: {why}.",
        cause="It does not run, the address is wrong, or a firewall is in between.",
        fix="Start it with 'ray start --head', correct compute.address, or leave it out to use "
        "this machine.",
    )


def _require_resources(there: dict[str, float], compute: ComputeSettings) -> None:
    for name, setting, wanted in (
        ("CPU", "cpus_per_worker", compute.cpus_per_worker),
        ("GPU", "gpus_per_worker", compute.gpus_per_worker),
    ):
        if wanted > there.get(name, 0.0):
            raise SettingsError(
                f"A training reserves {wanted:g} {name} ({setting}), Ray has "
                f"{there.get(name, 0):g}.",
                fix=f"Lower {setting}, or give the address of a cluster that has as many.",
            )


def _num_actors(compute: ComputeSettings, most: int) -> int:
    there, count = _ray().cluster_resources(), min(most, compute.workers or most)
    for name, wanted in (("CPU", compute.cpus_per_worker), ("GPU", compute.gpus_per_worker)):
        if wanted > 0:
            count = min(count, math.floor(there.get(name, 0.0) / wanted + 1e-9))
    return count


def _no_worker(why: str) -> TrainingFailed:
    return TrainingFailed(
        f"No Ray worker could start: {why}.",
        cause="The machine is out of memory or processes, or a node cannot import sluice.",
        fix="Look at the worker logs in Ray's session folder; on a cluster install the same "
        "version of sluice on every node.",
    )


def _actor_type(compute: ComputeSettings) -> Any:
    # Inside a function Ray sends the class itself, so that a worker needs nothing but its path
    # to find the modules that the objective comes from.
    class Worker:
        def __init__(self, path: list[str], objective: bytes) -> None:
            import pickle
            import sys

            sys.path.extend(part for part in path if part not in sys.path)
            self.objective = pickle.loads(objective)

        def there(self) -> bool:
            return True

        def run(self, content: bytes) -> bytes:
            import pickle

            from sluice.errors import StorageError
            from sluice.tuning.driver import answer

            segment, folder = pickle.loads(content)
            try:
                return pickle.dumps(answer(self.objective, segment, folder))
            except StorageError as error:
                return pickle.dumps(error)

    options: dict[str, float] = {"num_cpus": compute.cpus_per_worker, "max_restarts": 0}
    if compute.gpus_per_worker:
        options["num_gpus"] = compute.gpus_per_worker
    return _ray().remote(**options)(Worker)


def _ray() -> Any:
    # Imported here: Ray takes half a second and only searches need it.
    import ray

    return ray
