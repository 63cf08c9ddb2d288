"""Slots of machines are counted, and impossible reservations are refused with the setting."""

from types import SimpleNamespace

import pytest

from sluice.base.errors import SettingsError
from sluice.cluster.settings import ComputeSettings
from sluice.cluster.slots import count_slots, require_slots
from sluice.cluster.trial_resources import describe_idle_slots


@pytest.mark.parametrize(
    ("machines", "reserved", "num_slots"),
    [
        ([{"CPU": 2.0}], {}, 2),
        ([{"CPU": 2.0}, {"CPU": 1.0}], {}, 3),
        ([{"CPU": 3.0}, {"CPU": 3.0}], {"cpus_per_worker": 2.0}, 2),
        ([{"CPU": 1.0}], {"cpus_per_worker": 1 / 3}, 3),
        ([{"CPU": 16.0, "GPU": 2.0}], {"gpus_per_worker": 0.4}, 4),
        ([{"CPU": 16.0, "GPU": 8.0}], {"gpus_per_worker": 2.0}, 4),
        ([{"CPU": 3.0, "GPU": 8.0}, {"CPU": 9.0}], {"gpus_per_worker": 1.0}, 3),
        ([{"CPU": 9.0}], {"workers": 4}, 4),
        ([{"CPU": 2.0}], {"workers": 4}, 2),
    ],
)
def test_each_job_fits_on_one_machine(machines, reserved, num_slots):
    assert count_slots(machines, ComputeSettings(**reserved)) == num_slots


def test_larger_reservations_get_fewer_slots():
    machines = [{"CPU": 7.0}, {"CPU": 12.0}]
    slots = [count_slots(machines, ComputeSettings(cpus_per_worker=c / 4)) for c in range(1, 48)]

    assert slots == sorted(slots, reverse=True)
    assert slots[-1] == 1


@pytest.mark.parametrize(
    ("machines", "reserved", "message"),
    [
        (
            [{"CPU": 2.0}],
            {"gpus_per_worker": 1.0},
            r"1 GPU \(gpus_per_worker\), but this machine has 0",
        ),
        (
            [{"CPU": 2.0}, {"CPU": 1.0}],
            {"cpus_per_worker": 3.0},
            r"3 CPU \(cpus_per_worker\), but the largest of 2 machines has 2",
        ),
        ([{"CPU": 1.0, "GPU": 1.0}, {"CPU": 8.0}], {"cpus_per_worker": 4.0}, "no machine has both"),
        ([], {}, r"cpus_per_worker\), but the largest of 0 machines has 0"),
    ],
)
def test_a_reservation_that_fits_on_no_machine_names_its_setting(machines, reserved, message):
    compute = ComputeSettings(**({"gpus_per_worker": 1.0} if "both" in message else {}) | reserved)
    with pytest.raises(SettingsError, match=message):
        count_slots(machines, compute)


def test_a_fraction_of_several_gpus_is_refused():
    with pytest.raises(SettingsError, match="gpus_per_worker must be at most 1 or an integer"):
        ComputeSettings(gpus_per_worker=1.5)


@pytest.mark.parametrize(
    ("machines", "reserved"),
    [
        ([{"CPU": 3.0}, {"CPU": 1.0}], {"cpus_per_worker": 2.0}),
        ([{"CPU": 1.0}, {"CPU": 1.0}, {"CPU": 0.9}], {"ranks_per_training": 3}),
        ([{"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0}], {"gpus_per_worker": 1.0}),
        ([{"CPU": 1.0, "GPU": 9.0}, {"CPU": 9.0, "GPU": 1.0}], {"gpus_per_worker": 2.0}),
    ],
)
def test_every_rank_needs_its_own_slot(machines, reserved):
    compute = ComputeSettings(**{"ranks_per_training": 2} | reserved)

    with pytest.raises(SettingsError, match=r"ranks_per_training\) need \d slots at the same time"):
        require_slots(machines, compute)
    require_slots([*machines, *machines], compute)


def test_a_limit_of_workers_does_not_limit_ranks():
    compute = ComputeSettings(workers=1, ranks_per_training=2)

    assert count_slots([{"CPU": 2.0}], compute) == 1
    require_slots([{"CPU": 2.0}], compute)
    with pytest.raises(SettingsError, match="machines have 1 slot"):
        require_slots([{"CPU": 1.0}], compute)


@pytest.mark.parametrize(
    ("workers", "trial_limit", "message"),
    [
        (None, ("search.num_trials", 2), "(search.num_trials), but 8 fit"),
        (2, ("search.concurrent_trials", 4), "Raise compute.workers and search.concurrent_trials"),
        (4, ("search.concurrent_trials", 9), "4 idle slots. Raise compute.workers to use"),
        (None, ("search.concurrent_trials", 8), ""),
    ],
)
def test_idle_slots_are_reported_with_every_limit_below_their_number(workers, trial_limit, message):
    ray = SimpleNamespace(nodes=lambda: [{"Alive": True, "Resources": {"CPU": 8.0}}])

    found = describe_idle_slots(ray, ComputeSettings(workers=workers), trial_limit)

    assert message in found
    assert bool(found) == bool(message)
