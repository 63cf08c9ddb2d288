"""How many trials of a search are under way at a time."""

from sluice.cluster.settings import ComputeSettings
from sluice.tuning.settings import SearchSettings


def most_at_a_time(settings: SearchSettings) -> int:
    """Return how many trials can be under way; with PBT the whole population takes its steps."""
    if settings.scheduler == "pbt":
        return settings.num_trials
    return min(settings.concurrent_trials, settings.num_trials)


def idle_workers(settings: SearchSettings, compute: ComputeSettings) -> str:
    """Return what to say when more workers are asked for than can be busy; empty otherwise."""
    most = most_at_a_time(settings)
    if compute.workers is None or compute.workers <= most:
        return ""
    told = f"compute.workers asks for {compute.workers}, and the search keeps at most {most} busy"
    if most == settings.num_trials:
        return f"{told}: it has no more trials (search.num_trials)."
    return (
        f"{told} (search.concurrent_trials). That number is part of the decisions: raised, to "
        f"about {2 * compute.workers}, it begins another search."
    )
