"""TUNE-3: a search on Ray resumes when its driver is killed repeatedly at random times.

All tests are exhaustive. Shorter ones cover parts of it: ``tuning/resumable/test_plain_ray.py``
kills drivers on Ray, ``tuning/test_killed.py`` kills a search, ``test_search_on_ray.py`` workers.
"""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from sluice.tuning.settings import SearchSettings
from tests.sluice.tuning.conftest import SINE, make_objective
from tests.sluice.tuning.toy_space import decisions, space
from tests.support.kill_server import ROOT, KillPlan, KillServer
from tests.support.killed_drivers import DriverWork
from tests.support.ray_machines import NODE_OPTIONS, start_with_retries
from tests.support.simulated_tune import simulate
from tests.support.toy_search import Toy

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

EPOCHS = 9
SEED = int(os.environ.get("SLUICE_KILL_SEED", "1"))
"""Seed of the times at which drivers are killed."""

STUDIES = {
    "asha": {"num_trials": 24, "scheduler": "asha", "grace_epochs": 1, "reduction": 2},
    "pbt": {"num_trials": 6, "scheduler": "pbt", "perturbation_epochs": 1},
    "tpe": {"num_trials": 20, "scheduler": "median", "grace_epochs": 4, "startup_trials": 6},
}


@pytest.fixture(scope="module")
def server():
    with KillServer() as server:
        yield server


@pytest.fixture(scope="module")
def address():
    """Address of a cluster with two cores. Drivers join it, but this process does not."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # its workers import the objectives of these tests
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        head = {**NODE_OPTIONS, "num_cpus": 2, "no_monitor": True}
        cluster = start_with_retries(lambda: Cluster(initialize_head=True, head_node_args=head))
    yield cluster.address
    cluster.shutdown()


def make_work(address, study, home: Path, *, objective="toy", **changes) -> DriverWork:
    training = {"max_epochs": EPOCHS, "patience_epochs": EPOCHS, "batch_rows": 24}
    base = SINE.model_copy(update={"training": SINE.training.model_copy(update=training)})
    is_training = objective == "training"
    return DriverWork(
        objective=make_objective(home, base=base, num_rows=170)
        if is_training
        else Toy(pause_s=0.05, max_epochs=EPOCHS),
        space=space().leading(1) if is_training else space(),
        base=base,
        settings=SearchSettings(seed=5, ordered=True, **STUDIES[study] | changes),
        address=address,
    )


def events(folder: Path) -> list[dict]:
    """Return the events of the journal without paths and times, which differ between runs."""
    records = []
    for line in (folder / "journal.jsonl").read_bytes().splitlines():
        event = json.loads(line)
        event.pop("checkpoint", None)
        event.pop("folder", None)
        event.get("result", {}).pop("seconds", None)
        records.append(event)
    return records


def kill_and_compare(server, work, tmp_path, *, kills, max_parts_per_child):
    """Kill the driver; require the decisions of an undisturbed driver and of a simulation."""
    reference, interrupted = tmp_path / "whole", tmp_path / "cut"
    simulated = dataclasses.replace(work, run=simulate)(tmp_path / "simulated")
    lines = len(events(tmp_path / "simulated"))
    killed = server.kill(
        KillPlan(
            work=dataclasses.replace(work, slow_folder="whole"),
            reference_folder=reference,
            killed_folder=interrupted,
            kills=kills,
            num_parts=lines,
            max_parts_per_child=max_parts_per_child,
            early_kill_share=0.2,
            seed=SEED,
            call_phases=("journal",),
        )
    )
    expected, resumed = (
        work(reference),
        work(interrupted),
    )  # both are complete: results are read from their folders

    assert killed.kills == kills
    assert decisions(expected) == decisions(simulated)
    assert decisions(resumed) == decisions(simulated)
    assert len(events(interrupted)) == len(events(reference)) == lines  # nothing is reported twice
    return killed, simulated


def test_a_killed_driver_makes_the_same_decisions_after_it_resumes(
    address, server, tmp_path, record_property
):
    work = make_work(address, "pbt", tmp_path, num_trials=4, perturbation_epochs=3)
    killed, result = kill_and_compare(server, work, tmp_path, kills=1, max_parts_per_child=1)

    assert result.exploits
    record_property("measurement", killed.summary("pbt on Ray", "decisions"))


@pytest.mark.parametrize("objective", ["toy", "training"])
@pytest.mark.parametrize("study", STUDIES)
def test_twenty_kills_of_the_driver_change_no_decision(
    study, objective, address, server, tmp_path, record_property
):
    work = make_work(address, study, tmp_path / "home", objective=objective)
    killed, result = kill_and_compare(server, work, tmp_path, kills=20, max_parts_per_child=1)

    assert bool(result.exploits) == (study == "pbt")
    assert killed.from_outside >= 5
    record_property("measurement", killed.summary(f"{study} of a {objective} on Ray", "decisions"))


@pytest.mark.parametrize("study", ["asha", "pbt"])
def test_a_killed_driver_that_started_ray_leaves_no_process_behind(
    study, server, tmp_path, record_property
):
    """The kill server adopts processes that outlive a driver and waits until they end."""
    work = make_work(None, study, tmp_path)
    killed, _ = kill_and_compare(server, work, tmp_path, kills=3, max_parts_per_child=1)

    assert killed.longest_orphan_s < 90  # the agents of Ray wait a minute for its head process
    record_property("measurement", killed.summary(f"{study} on a Ray of its own", "decisions"))
    record_property(
        "measurement", f"the last process ended {killed.longest_orphan_s:.1f} s after a kill"
    )
