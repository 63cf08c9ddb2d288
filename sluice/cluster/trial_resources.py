"""What one trial of a search reserves, and how much of a cluster a limit leaves idle."""

import math
from typing import Any

from sluice.base.cpu_count import count_cores
from sluice.cluster.places import count_places
from sluice.cluster.ray_session import machines
from sluice.cluster.settings import ComputeSettings


def resources_of(compute: ComputeSettings) -> Any:
    """Return Ray Tune's ``PlacementGroupFactory`` of one trial: one bundle, on one machine.

    Shares of a GPU (``gpus_per_worker`` of 0.25) and several GPUs for a trial are taken as they
    are set.
    """
    from ray import tune

    bundle = {"CPU": compute.cpus_per_worker}
    if compute.gpus_per_worker:
        bundle["GPU"] = compute.gpus_per_worker
    return tune.PlacementGroupFactory([bundle])


def cores_of(compute: ComputeSettings) -> int | None:
    """Return the cores that a Ray of this machine hands out: as many as the workers asked for use.

    None without a limit of workers; never more than there are.
    """
    if compute.workers is None:
        return None
    return min(count_cores(), max(1, math.ceil(compute.workers * compute.cpus_per_worker)))


def binding_limit(ray: Any, compute: ComputeSettings) -> int | None:
    """Return ``compute.workers`` where the machines have room for more trials; else None."""
    if compute.workers is None or _count(machines(ray), compute) <= compute.workers:
        return None
    return compute.workers


def idle_share(ray: Any, compute: ComputeSettings, most: int | None) -> str:
    """Return what a limit leaves idle of the machines that run now, as a sentence; else "".

    Args:
        ray: The module, joined to the cluster.
        compute: What a trial reserves, and at most how many run (``workers``).
        most: Most trials at a time by the search itself; None without a limit.
    """
    limits = {
        "compute.workers": compute.workers,
        "search.concurrent_trials": most,
    }
    there = machines(ray)
    places = _count(there, compute)
    named = {name: limit for name, limit in limits.items() if limit is not None and limit < places}
    if not named:
        return ""
    name = min(named, key=lambda each: named[each])
    return (
        f"{named[name]} trials run at a time ({name}), and {places} fit on the "
        f"{len(there)} machines of the cluster now: {places - named[name]} places stay idle. "
        f"Raise {name} to use them."
    )


def _count(there: list[dict[str, float]], compute: ComputeSettings) -> int:
    from sluice.base.errors import SettingsError

    try:
        return count_places(there, compute.model_copy(update={"workers": None}))
    except SettingsError:
        return 0  # machines come later, from an autoscaler
