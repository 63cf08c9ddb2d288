"""Number of concurrent trials, and reports of idle workers."""

import pytest

from sluice.cluster.settings import ComputeSettings
from sluice.tuning.concurrency import describe_idle_workers, is_ordered, max_concurrent_trials
from tests.sluice.tuning.toy_space import settings

HERE, CLUSTER = ComputeSettings(), ComputeSettings(address="ray://head:10001")
PB2 = {"class": "ray.tune.schedulers.pb2.PB2"}


@pytest.mark.parametrize(
    ("search_settings", "compute", "expected"),
    [
        (settings(20), HERE, 8),
        (settings(20, concurrent_trials=4), HERE, 4),
        (settings(2), HERE, 2),
        (settings(16, "pbt"), HERE, 16),
        (settings(16, "pbt", concurrent_trials=4), HERE, 4),
        (settings(16, PB2), HERE, 16),
        (settings(20), CLUSTER, None),
        (settings(20, concurrent_trials=4), CLUSTER, 4),
        (settings(20, ordered=True), CLUSTER, 8),
        (settings(20, ordered=False), HERE, None),
    ],
)
def test_limit_of_concurrent_trials(search_settings, compute, expected):
    assert max_concurrent_trials(search_settings, compute) == expected


def test_searches_are_ordered_by_default_only_on_one_machine():
    assert is_ordered(settings(), HERE)
    assert not is_ordered(settings(), CLUSTER)
    assert is_ordered(settings(ordered=True), CLUSTER)
    assert not is_ordered(settings(ordered=False), HERE)


@pytest.mark.parametrize(
    ("search_settings", "workers", "message"),
    [
        (settings(20, concurrent_trials=4), 8, "at most 4 (search.concurrent_trials)"),
        (
            settings(20),
            9,
            "at most 8, the default of an ordered search. Set search.concurrent_trials",
        ),
        (settings(20, concurrent_trials=4), 4, ""),
        (settings(20), None, ""),
        (settings(16, "pbt"), 8, ""),
        (settings(8, "pbt"), 9, "at most 8, its number of trials"),
        (settings(3), 4, "at most 3, its number of trials"),
    ],
)
def test_idle_workers_are_reported(search_settings, workers, message):
    found = describe_idle_workers(search_settings, ComputeSettings(workers=workers))
    assert message in found
    assert bool(found) == bool(message)


@pytest.mark.parametrize(
    ("search_settings", "available_workers", "message"),
    [
        (settings(200), 64, ""),
        (
            settings(20),
            64,
            "slots for 64 workers, but the search uses at most 20, its number of trials",
        ),
        (settings(200, concurrent_trials=8), 64, "slots for 64 workers, but the search uses at"),
        (settings(200, ordered=True), 64, "at most 8, the default of an ordered search"),
    ],
)
def test_unused_slots_of_a_cluster_are_reported(search_settings, available_workers, message):
    found = describe_idle_workers(search_settings, CLUSTER, available_workers=available_workers)
    assert message in found
    assert bool(found) == bool(message)
