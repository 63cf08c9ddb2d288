"""How many trials run at a time, and when somebody asked for more workers than that."""

import pytest

from sluice.cluster.settings import ComputeSettings
from sluice.tuning.lanes import idle_workers, is_ordered, most_at_a_time
from tests.sluice.tuning.toy_space import settings

HERE, CLUSTER = ComputeSettings(), ComputeSettings(address="ray://head:10001")
PB2 = {"class": "ray.tune.schedulers.pb2.PB2"}


@pytest.mark.parametrize(
    ("own", "compute", "most"),
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
def test_the_limit_of_trials_at_a_time(own, compute, most):
    assert most_at_a_time(own, compute) == most


def test_an_order_that_does_not_depend_on_speed_is_for_this_machine_unless_asked():
    assert is_ordered(settings(), HERE)
    assert not is_ordered(settings(), CLUSTER)
    assert is_ordered(settings(ordered=True), CLUSTER)
    assert not is_ordered(settings(ordered=False), HERE)


@pytest.mark.parametrize(
    ("own", "workers", "said"),
    [
        (settings(20, concurrent_trials=4), 8, "at most 4 busy (search.concurrent_trials)"),
        (
            settings(20),
            9,
            "at most 8 busy, as an ordered search does. Set search.concurrent_trials",
        ),
        (settings(20, concurrent_trials=4), 4, ""),
        (settings(20), None, ""),
        (settings(16, "pbt"), 8, ""),
        (settings(8, "pbt"), 9, "at most 8 busy: it has no more trials"),
        (settings(3), 4, "at most 3 busy: it has no more trials"),
    ],
)
def test_workers_without_work_are_said(own, workers, said):
    found = idle_workers(own, ComputeSettings(workers=workers))
    assert said in found
    assert bool(found) == bool(said)


@pytest.mark.parametrize(
    ("own", "available", "said"),
    [
        (settings(200), 64, ""),
        (settings(20), 64, "room for 64 workers, and the search keeps at most 20 busy: it has no"),
        (settings(200, concurrent_trials=8), 64, "room for 64 workers, and the search keeps at"),
        (settings(200, ordered=True), 64, "at most 8 busy, as an ordered search does"),
    ],
)
def test_room_of_a_cluster_that_is_not_used_is_said(own, available, said):
    found = idle_workers(own, CLUSTER, available=available)
    assert said in found
    assert bool(found) == bool(said)
