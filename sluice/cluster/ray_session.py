"""The one adapter to Ray: start it on this machine or join a cluster, and leave it again.

Ray's own search engine is not used: it forgets the scheduler's state when the driver dies, starts
a process for every trial, and lets decisions depend on which worker was faster. Ray does here what
it does well: it places workers on machines and says when one died.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from sluice.cluster.places import count_places
from sluice.cluster.ray_address import require_cluster, unreachable
from sluice.cluster.settings import ComputeSettings
from sluice.cores import count_cores
from sluice.errors import SettingsError


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


def _start(ray: Any, compute: ComputeSettings) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unasked
    options = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if compute.address is None:
            cores = count_cores()
            ray.init(address="local", num_cpus=cores, include_dashboard=False, **options)
        else:
            ray.init(address=compute.address, **options)
    except (OSError, ValueError, RuntimeError) as error:
        if compute.address is not None:
            raise unreachable(compute.address, str(error)) from error
        raise SettingsError(
            f"Ray could not start on this machine: {error}.",
            fix="Free memory and processes; if a path is too long, set RAY_TMPDIR to a short one.",
        ) from error
