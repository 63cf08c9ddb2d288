"""A pool of Ray actors refuses invalid resources, reports progress and cleans up."""

import os
import time

import psutil
import pytest

from sluice.base.errors import SettingsError
from sluice.cluster.jobs import JobResult
from sluice.cluster.ray_pool import RayPool, open_ray_pool
from sluice.cluster.settings import ComputeSettings
from sluice.training.parallel import train_members
from tests.sluice.training.conftest import specs as specs
from tests.support.jobs import Fail, Wait


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "cannot be reached"),
        ("ray://no-such-host.invalid:10001", "cannot be reached"),
        ("somewhere", "must be 'host:port'"),
    ],
)
def test_an_unreachable_cluster_is_refused_within_a_minute(address, message, tmp_path):
    """Ray itself tries for minutes and then ends the process."""
    started = time.monotonic()
    with (
        pytest.raises(SettingsError, match=message),
        open_ray_pool(
            ComputeSettings(address=address), max_workers=4, imports=(), folders=[tmp_path]
        ),
    ):
        pass
    assert time.monotonic() - started < 60


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
@pytest.mark.parametrize(("name", "reserved"), [("gpus_per_worker", 0.5), ("cpus_per_worker", 2.0)])
def test_a_reservation_larger_than_a_machine_is_refused(name, reserved, specs):
    """Two machines with one core each have no slot for a fold run that reserves two."""
    started = time.monotonic()
    compute = ComputeSettings(**{"gpus_per_worker": 0.0, name: reserved})
    with (
        pytest.raises(
            SettingsError,
            match=rf"reserves {reserved:g} .PU \({name}\), but the largest of 2 machines",
        ),
        open_ray_pool(compute, max_workers=4, imports=(), folders=[]),
    ):
        pass
    if name == "gpus_per_worker":
        with pytest.raises(SettingsError, match=r"A training reserves 0.5 GPU \(gpus_per_worker\)"):
            train_members(specs(folds=2), compute=compute, on_event=print)
    assert time.monotonic() - started < 60


@pytest.mark.slow
def test_a_machine_that_does_not_share_a_folder_is_refused(ray_here, tmp_path):
    probe_files = ((tmp_path / ".probe-1", b"what another machine sees here"),)
    pool = RayPool(ray_here, ComputeSettings(), probe_files=probe_files, imports=())
    pool.add()
    with pytest.raises(
        SettingsError, match=rf"The folder {tmp_path} is not shared with the worker"
    ):
        pool.next_message()
    pool.close()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_jobs_report_progress_and_workers_end_with_the_pool(tmp_path):
    compute, released = ComputeSettings(retries=0), tmp_path / "go"
    with open_ray_pool(compute, max_workers=2, imports=(), folders=[tmp_path]) as pool:
        while not pool.has_capacity():
            assert pool.next_message() is None
        pool.submit("a", Wait(released_file=released))
        while (messages := pool.next_message()) is None:
            pass
        released.touch()  # the job ends only now, after its messages were received
        while (done := pool.next_message()) is None:
            pass
        while not pool.has_capacity():
            assert pool.next_message() is None
        pool.submit("b", Fail("SystemExit"))
        while (lost := pool.next_message()) is None:
            pass
        assert list(tmp_path.glob(".probe-*"))

    process, environment = messages.message
    assert process != os.getpid()
    assert environment == {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    assert done == JobResult(key="a", result="released")
    assert (lost.key, lost.num_times_lost, lost.will_retry) == ("b", 1, False)
    deadline = time.monotonic() + 20
    while psutil.pid_exists(process):
        assert time.monotonic() < deadline, "a worker outlived its pool"
        time.sleep(0.1)
    assert not list(tmp_path.glob(".probe-*"))
