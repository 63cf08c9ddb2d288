"""The one adapter to Ray: start it on this machine or join a cluster, and leave it again.

Ray's own search engine is not used: it forgets the scheduler's state when the driver dies, starts
a process for every trial, and lets decisions depend on which worker was faster. Ray does here what
it does well: it places workers on machines and says when one died.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sluice.cluster.places import count_places
from sluice.cluster.ray_address import require_cluster, unreachable
from sluice.cluster.ray_token import keep_token_private
from sluice.cluster.settings import ComputeSettings
from sluice.cores import count_cores
from sluice.errors import SettingsError
from sluice.files import own_temporary_folder

_CLUSTER = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


@contextlib.contextmanager
def join_ray(compute: ComputeSettings) -> Iterator[Any]:
    """Start Ray here, or join the cluster at ``compute.address``; yield the module ``ray``.

    A Ray that runs in this process already is used and left running.

    Raises:
        SettingsError: The cluster cannot be reached, or Ray cannot start.
    """
    # Imported here: Ray takes half a second and only some work needs it.
    import ray

    own = not ray.is_initialized()
    if compute.address is not None:
        require_cluster(compute.address)
        if not own:
            raise SettingsError(
                f"The cluster at '{compute.address}' is asked for, and Ray runs in this process "
                "already.",
                fix="Leave compute.address out to use the running one, or call ray.shutdown first.",
            )
    if own:
        _start(ray, compute)
    try:
        yield ray
    finally:
        if own:
            ray.shutdown()


def count_actors(ray: Any, compute: ComputeSettings) -> int:
    """Return how many workers fit on the machines of the running Ray.

    Raises:
        SettingsError: Not one.
    """
    return count_places(machines(ray), compute)


def machines(ray: Any) -> list[dict[str, float]]:
    """Return what each machine of the running Ray has."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def start_on_loopback(ray: Any) -> None:
    """Start Ray on this machine: every port on 127.0.0.1, every request with Ray's token.

    Ray lets everybody write to its folder of sockets and logs, so it lies in one of this user's.

    Raises:
        StorageError: Ray's token, or its folder, cannot be written.
    """
    from ray._common import utils
    from ray._private import ray_constants

    keep_token_private()
    base: str = utils.get_default_system_temp_dir()  # type: ignore[no-untyped-call]
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unasked
    before = ray_constants.ENABLE_RAY_CLUSTER, os.environ.get(_CLUSTER)
    # Ray takes 127.0.0.1 as its address only where it expects no other machine, as on a laptop's
    # macOS; with _node_ip_address="127.0.0.1" it looks for another address and listens everywhere.
    ray_constants.ENABLE_RAY_CLUSTER, os.environ[_CLUSTER] = False, "0"
    try:
        ray.init(
            address="local",
            num_cpus=count_cores(),
            include_dashboard=False,
            _temp_dir=str(own_temporary_folder(Path(base)) / "ray"),
            log_to_driver=False,
            logging_level="ERROR",
            job_config=_own_path(),
        )
    finally:  # a cluster may be joined later on
        ray_constants.ENABLE_RAY_CLUSTER = before[0]
        if before[1] is None:
            del os.environ[_CLUSTER]
        else:
            os.environ[_CLUSTER] = before[1]


def _own_path() -> Any:
    """Return a job's settings that leave the path of its workers to Sluice.

    Ray would put the working folder in front of it, before the standard library.
    """
    from ray.job_config import JobConfig

    class OwnPath(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            return True  # what Ray asks before it adds the working folder

    return OwnPath()


def _start(ray: Any, compute: ComputeSettings) -> None:
    options = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if compute.address is None:
            start_on_loopback(ray)
        elif compute.address.startswith("ray://"):
            ray.init(address=compute.address, **options)
        else:
            ray.init(address=compute.address, job_config=_own_path(), **options)
    except (OSError, ValueError, RuntimeError) as error:
        if compute.address is not None:
            raise unreachable(compute.address, str(error)) from error
        raise SettingsError(
            f"Ray could not start on this machine: {error}.",
            fix="Free memory and processes; if a path is too long, set RAY_TMPDIR to a short one.",
        ) from error
