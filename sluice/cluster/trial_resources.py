"""Resources that trials of a search reserve, and slots that limits leave idle."""

import math
from typing import Any

from sluice.base.cpu_count import count_cores
from sluice.base.pluralize import pluralize
from sluice.cluster.ray_session import machine_resources
from sluice.cluster.settings import ComputeSettings
from sluice.cluster.slots import count_slots


def trial_resources(compute: ComputeSettings) -> Any:
    """Return the resources of one trial for Ray Tune: a single bundle, which is on one machine.

    Ray Tune accepts a fraction of a GPU (``gpus_per_worker`` of 0.25) and several GPUs per trial.
    """
    from ray import tune

    bundle = {"CPU": compute.cpus_per_worker}
    if compute.gpus_per_worker:
        bundle["GPU"] = compute.gpus_per_worker
    return tune.PlacementGroupFactory([bundle])


def local_ray_cores(compute: ComputeSettings) -> int | None:
    """Return the number of cores that a local Ray instance needs for ``compute.workers``.

    The number is at most that of this machine. Without a limit of workers the result is None.
    """
    if compute.workers is None:
        return None
    return min(count_cores(), max(1, math.ceil(compute.workers * compute.cpus_per_worker)))


def worker_limit(ray: Any, compute: ComputeSettings) -> int | None:
    """Return ``compute.workers`` if more trials would fit on the machines; else None."""
    if compute.workers is None or _count_slots(machine_resources(ray), compute) <= compute.workers:
        return None
    return compute.workers


def describe_idle_slots(ray: Any, compute: ComputeSettings, max_trials: int | None) -> str:
    """Return a message about slots that a limit leaves idle; "" if no slots are idle.

    Args:
        ray: The ``ray`` module, connected to the cluster.
        compute: Resources that a trial reserves, and the limit ``workers``.
        max_trials: Maximum number of concurrent trials of the search; None without a limit.
    """
    limits = {
        "compute.workers": compute.workers,
        "search.concurrent_trials": max_trials,
    }
    resources = machine_resources(ray)
    slots = _count_slots(resources, compute)
    too_low = {name: limit for name, limit in limits.items() if limit is not None and limit < slots}
    if not too_low:
        return ""
    name = min(too_low, key=lambda setting: too_low[setting])
    return (
        f"Only {pluralize(too_low[name], 'trial')} can run at a time ({name}), but {slots} fit on "
        f"the {pluralize(len(resources), 'machine')} of the cluster: "
        f"{pluralize(slots - too_low[name], 'idle slot')}. Raise {name} to use all slots."
    )


def _count_slots(resources: list[dict[str, float]], compute: ComputeSettings) -> int:
    from sluice.base.errors import SettingsError

    try:
        return count_slots(resources, compute.model_copy(update={"workers": None}))
    except SettingsError:
        return 0  # an autoscaler may add machines later
