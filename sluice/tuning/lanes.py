"""How many trials of a search are under way at a time, and in which order results count."""

from sluice.cluster.settings import ComputeSettings
from sluice.tuning.schedulers import is_population
from sluice.tuning.settings import SearchSettings

ORDERED_TRIALS = 8
"""Trials at a time of an ordered search, unless settings name another number. It is part of the
decisions, so it does not follow the number of cores."""


def is_ordered(settings: SearchSettings, compute: ComputeSettings) -> bool:
    """Return whether the order of results does not depend on the speed of workers."""
    return compute.address is None if settings.ordered is None else settings.ordered


def most_at_a_time(settings: SearchSettings, compute: ComputeSettings) -> int | None:
    """Return how many trials can be under way; None for as many as the cluster has room for."""
    if settings.concurrent_trials is not None:
        return min(settings.concurrent_trials, settings.num_trials)
    if is_population(settings.scheduler):
        return settings.num_trials
    return min(ORDERED_TRIALS, settings.num_trials) if is_ordered(settings, compute) else None


def idle_workers(
    settings: SearchSettings, compute: ComputeSettings, *, available: int | None = None
) -> str:
    """Return what to say when a limit leaves workers idle; empty otherwise.

    Args:
        settings: The budget and the limits.
        compute: The workers that are asked for.
        available: Workers that the cluster has room for; None where that is not known.
    """
    most = most_at_a_time(settings, compute)
    if most is None:
        most = settings.num_trials
    asked = compute.workers if compute.workers is not None else available
    if asked is None or asked <= most:
        return ""
    source = (
        f"compute.workers asks for {asked}"
        if compute.workers is not None
        else f"The cluster has room for {asked} workers"
    )
    told = f"{source}, and the search keeps at most {most} busy"
    if most == settings.num_trials:
        return f"{told}: it has no more trials (search.num_trials)."
    if settings.concurrent_trials is None:
        return (
            f"{told}, as an ordered search does. Set search.concurrent_trials to about "
            f"{2 * asked}, or search.ordered to false; both begin another search."
        )
    return (
        f"{told} (search.concurrent_trials). That number is part of the decisions: raised, to "
        f"about {2 * asked}, it begins another search."
    )
