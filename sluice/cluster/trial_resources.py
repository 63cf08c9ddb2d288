"""Resources that trials of a search reserve, and slots that limits leave idle."""

import math
from typing import Any

from sluice.base.cpu_count import count_cores
from sluice.base.errors import SettingsError
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

    The result is at most the number of cores of this process; None without ``compute.workers``.
    """
    if compute.workers is None:
        return None
    return min(count_cores(), max(1, math.ceil(compute.workers * compute.cpus_per_worker)))


def worker_limit(ray: Any, compute: ComputeSettings) -> int | None:
    """Return ``compute.workers`` if more trials would fit on the machines; else None."""
    if (
        compute.workers is None
        or _count_slots_without_limit(machine_resources(ray), compute) <= compute.workers
    ):
        return None
    return compute.workers


def describe_idle_slots(
    ray: Any, compute: ComputeSettings, trial_limit: tuple[str, int] | None
) -> str:
    """Return a message about slots that limits leave idle; "" if no slots are idle.

    Args:
        ray: The ``ray`` module, connected to the cluster.
        compute: Resources that a trial reserves, and the limit ``workers``.
        trial_limit: Name of the setting that limits the concurrent trials of the search, and their
            maximum number; None without a limit.
    """
    resources = machine_resources(ray)
    num_slots = _count_slots_without_limit(resources, compute)
    limits = {"compute.workers": compute.workers} if compute.workers is not None else {}
    if trial_limit is not None:
        limits |= {trial_limit[0]: trial_limit[1]}
    low_limits = {name: limit for name, limit in limits.items() if limit < num_slots}
    if not low_limits:
        return ""
    lowest_limit_name = min(low_limits, key=low_limits.__getitem__)
    return (
        f"Only {pluralize(low_limits[lowest_limit_name], 'trial')} can run at a time "
        f"({lowest_limit_name}), but {num_slots} fit on the "
        f"{pluralize(len(resources), 'machine')} of the cluster: "
        f"{pluralize(num_slots - low_limits[lowest_limit_name], 'idle slot')}. Raise "
        f"{' and '.join(sorted(low_limits))} to use all slots."
    )


def _count_slots_without_limit(resources: list[dict[str, float]], compute: ComputeSettings) -> int:
    """Return the number of trials that fit on the machines without the limit ``workers``."""
    try:
        return count_slots(resources, compute.model_copy(update={"workers": None}))
    except SettingsError:
        return 0  # an autoscaler may add machines later
