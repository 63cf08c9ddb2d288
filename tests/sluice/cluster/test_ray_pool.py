"""A pool of actors on Ray: what is refused, what jobs tell, and what is left behind."""

import os
import time

import psutil
import pytest

from sluice.base.errors import SettingsError
from sluice.cluster.jobs import Done
from sluice.cluster.ray_pool import RayPool, open_ray_pool
from sluice.cluster.settings import ComputeSettings
from sluice.training.parallel import train_members
from tests.sluice.training.conftest import specs as specs
from tests.support.jobs import Fail, Wait


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "cannot be reached"),
        ("ray://no-such-host.invalid:10001", "cannot be reached"),
        ("somewhere", "must be 'host:port'"),
    ],
)
def test_a_cluster_that_is_not_there_is_said_at_once(address, said, tmp_path):
    """Ray itself tries for minutes and then ends the process."""
    started = time.monotonic()
    with (
        pytest.raises(SettingsError, match=said),
        open_ray_pool(ComputeSettings(address=address), most=4, imports=(), folders=[tmp_path]),
    ):
        pass
    assert time.monotonic() - started < 60


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
@pytest.mark.parametrize(("name", "wanted"), [("gpus_per_worker", 0.5), ("cpus_per_worker", 2.0)])
def test_more_than_a_machine_has_is_refused(name, wanted, specs):
    """Two machines with one core each have no place for a unit that reserves two."""
    started = time.monotonic()
    compute = ComputeSettings(**{"gpus_per_worker": 0.0, name: wanted})
    with (
        pytest.raises(
            SettingsError, match=rf"reserves {wanted:g} .PU \({name}\), the largest of 2"
        ),
        open_ray_pool(compute, most=4, imports=(), folders=[]),
    ):
        pass
    if name == "gpus_per_worker":
        with pytest.raises(SettingsError, match=r"A training reserves 0.5 GPU \(gpus_per_worker\)"):
            train_members(specs(folds=2), compute=compute, on_event=print)
    assert time.monotonic() - started < 60


@pytest.mark.slow
def test_a_machine_that_has_other_folders_is_refused_at_once(ray_here, tmp_path):
    marks = ((tmp_path / ".mark-1", b"what another machine sees here"),)
    pool = RayPool(ray_here, ComputeSettings(), marks=marks, imports=())
    pool.add()
    with pytest.raises(SettingsError, match=rf"The folder {tmp_path} .* is not that of the worker"):
        pool.next()
    pool.close()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_jobs_tell_while_they_run_and_no_worker_stays(tmp_path):
    compute, released = ComputeSettings(retries=0), tmp_path / "go"
    with open_ray_pool(compute, most=2, imports=(), folders=[tmp_path]) as pool:
        while not pool.free():
            assert pool.next() is None
        pool.give("a", Wait(until=released))
        while (told := pool.next()) is None:
            pass
        released.touch()  # only now can it end: what it told was heard before
        while (done := pool.next()) is None:
            pass
        while not pool.free():
            assert pool.next() is None
        pool.give("b", Fail("SystemExit"))
        while (lost := pool.next()) is None:
            pass
        assert list(tmp_path.glob(".mark-*"))

    process, environment = told.message
    assert process != os.getpid()
    assert environment == {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    assert done == Done(key="a", result="released")
    assert (lost.key, lost.times, lost.again) == ("b", 1, False)
    deadline = time.monotonic() + 20
    while psutil.pid_exists(process):
        assert time.monotonic() < deadline, "a worker outlived its pool"
        time.sleep(0.1)
    assert not list(tmp_path.glob(".mark-*"))
