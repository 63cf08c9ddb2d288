"""Storage, machines and slots of a cluster are checked before a study starts on it."""

import os
import signal

import psutil
import pytest

from sluice.base.errors import SettingsError, StorageError
from sluice.cluster import ray_session
from sluice.cluster.autoscaling import find_autoscaler, wait_for_slot
from sluice.cluster.ray_session import call_on_every_machine, dashboard_url, join_ray
from sluice.cluster.settings import ComputeSettings
from sluice.cluster.storage import tune_storage
from sluice.cluster.trial_resources import describe_idle_slots
from tests.sluice.cluster.conftest import KEYS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def compute(cluster, s3) -> ComputeSettings:
    cluster.complete()
    return ComputeSettings(
        address=cluster.address,
        storage_path=s3.format("prefix"),
        runtime_env={"env_vars": {name: f"${{{name}}}" for name in KEYS}},
    )


@pytest.fixture(scope="module")
def joined(compute):
    with join_ray(compute) as ray:
        yield ray


@pytest.mark.usefixtures("joined")
def test_a_folder_that_machines_do_not_share_is_refused(compute, tmp_path):
    """Machines of this test share a disk, so an in-memory file system replaces it."""
    not_shared = compute.model_copy(update={"storage_path": "memory://results"})
    with pytest.raises(StorageError, match="cannot read it"):
        tune_storage(not_shared, tmp_path)
    shared = compute.model_copy(update={"storage_path": None})
    assert tune_storage(shared, tmp_path / "study") == (str(tmp_path / "study"), None)
    assert list((tmp_path / "study").iterdir()) == []


@pytest.mark.usefixtures("joined")
def test_a_machine_that_does_not_respond_is_reported(compute, cluster, tmp_path, monkeypatch):
    """The raylet is stopped for seconds: the machine stays in the cluster but starts no worker."""
    cluster.complete()
    (raylet,) = cluster.second.all_processes["raylet"]
    received = []
    os.kill(raylet.process.pid, signal.SIGSTOP)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(ray_session, "_RESPONSE_TIMEOUT_S", 2.0)
            tune_storage(compute, tmp_path, received.append)
    finally:
        os.kill(raylet.process.pid, signal.SIGCONT)

    (line,) = received
    assert "did not start a worker in time" in line
    assert psutil.pid_exists(raylet.process.pid)
    assert {response.value for response in call_on_every_machine(lambda: 7)} == {7}


def test_slots_that_are_idle_because_of_a_limit_are_reported(joined, compute, cluster):
    cluster.complete()
    limited = compute.model_copy(update={"workers": 1})
    assert "1 trial can run at a time (compute.workers), but 2 fit" in describe_idle_slots(
        joined, limited, ("search.concurrent_trials", 8)
    )
    assert "(search.concurrent_trials)" in describe_idle_slots(
        joined, compute, ("search.concurrent_trials", 1)
    )
    assert describe_idle_slots(joined, compute, None) == ""
    assert dashboard_url(joined) == ""


def test_a_trial_larger_than_every_machine_is_refused_without_an_autoscaler(joined, compute):
    received = []
    with pytest.raises(SettingsError, match="reserves 64 GPU"):
        wait_for_slot(joined, compute.model_copy(update={"gpus_per_worker": 64.0}), received.append)
    assert find_autoscaler(joined) == "absent"
    assert received == []


@pytest.mark.parametrize(
    ("path", "message"),
    [("no-such-bucket/x", "NO_SUCH_BUCKET"), ("studies/x&endpoint_over=1", "endpoint_over")],
)
def test_a_storage_that_cannot_be_written_is_refused(s3, path, message, tmp_path):
    url = s3.format("x").replace("studies/x", path.split("&")[0])
    url += "&endpoint_over=1" if "&" in path else ""
    with pytest.raises((StorageError, SettingsError), match=message):
        tune_storage(ComputeSettings(storage_path=url), tmp_path)
