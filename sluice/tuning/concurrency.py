"""Number of concurrent trials of a search, and the order in which their results are applied."""

from sluice.base.pluralize import pluralize
from sluice.cluster.settings import ComputeSettings
from sluice.tuning.schedulers import is_population_based
from sluice.tuning.settings import SearchSettings

_DEFAULT_CONCURRENT_TRIALS = 8
"""Default number of concurrent trials of an ordered search. It does not depend on the number of
cores, because the number of concurrent trials affects the decisions of the search."""


def is_ordered(settings: SearchSettings, compute: ComputeSettings) -> bool:
    """Return whether results are applied in an order that is independent of the workers' speed."""
    return compute.address is None if settings.ordered is None else settings.ordered


def max_concurrent_trials(settings: SearchSettings, compute: ComputeSettings) -> int | None:
    """Return the maximum number of concurrent trials; None if only the cluster limits it."""
    if settings.concurrent_trials is not None:
        return min(settings.concurrent_trials, settings.num_trials)
    if is_population_based(settings.scheduler):
        return settings.num_trials
    return (
        min(_DEFAULT_CONCURRENT_TRIALS, settings.num_trials)
        if is_ordered(settings, compute)
        else None
    )


def describe_idle_workers(
    settings: SearchSettings, compute: ComputeSettings, *, available_workers: int | None = None
) -> str:
    """Return a message if a limit on concurrent trials leaves workers idle; "" otherwise.

    Args:
        settings: Settings with the number of trials and the limit on concurrent trials.
        compute: Settings with the number of requested workers.
        available_workers: Number of workers that fit on the cluster; None if unknown.
    """
    max_trials = max_concurrent_trials(settings, compute)
    if max_trials is None:
        max_trials = settings.num_trials
    num_workers = compute.workers if compute.workers is not None else available_workers
    if num_workers is None or num_workers <= max_trials:
        return ""
    workers_text = (
        f"compute.workers requests {pluralize(num_workers, 'worker')}"
        if compute.workers is not None
        else f"The cluster has slots for {pluralize(num_workers, 'worker')}"
    )
    text = f"{workers_text}, but the search uses at most {max_trials}"
    if max_trials == settings.num_trials:
        return f"{text}, its number of trials (search.num_trials)."
    if settings.concurrent_trials is None:
        return (
            f"{text}, the default of an ordered search. Set search.concurrent_trials to about "
            f"{2 * num_workers}, or search.ordered to false; both start a new search."
        )
    return (
        f"{text} (search.concurrent_trials). To use all workers, raise this setting to about "
        f"{2 * num_workers}. That starts a new search, because the setting affects the decisions."
    )
