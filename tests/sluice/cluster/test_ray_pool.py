"""Trials on Ray: same decisions as in one process, whatever dies."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from sluice.cluster.jobs import Done
from sluice.cluster.ray_pool import RayPool, open_ray_pool
from sluice.cluster.settings import ComputeSettings
from sluice.errors import SearchFailed, SettingsError, TrainingFailed
from sluice.training.parallel import train_members
from tests.sluice.training.conftest import specs as specs
from tests.sluice.tuning.toy_space import decisions, search, settings
from tests.support.jobs import Fail, Wait
from tests.support.toy_search import LR, Toy

ROOT = Path(__file__).parents[3]


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
@pytest.mark.parametrize("scheduler", ["asha", pytest.param("pbt", marks=pytest.mark.exhaustive)])
def test_workers_on_ray_decide_nothing(ray_here, scheduler, tmp_path):
    """Segments of different length, two workers: the result is that of one process."""
    own = settings(12, scheduler)
    expected = search(tmp_path / "one", own)
    marks = set()

    def hear(_outcome, _trials):
        for mark in (tmp_path / "ray" / "trials").glob("*/mark"):
            marks.add(mark.read_text())

    result = search(tmp_path / "ray", own, where="ray", toy=Toy(pause_s=0.04), hear=hear)

    assert decisions(result) == decisions(expected)
    assert ray_here.is_initialized()
    # Workers are used again: no process a trial, and none of them is this one.
    assert 1 <= len(marks) <= 4  # two, and those that replace one which was lost
    assert str(os.getpid()) not in marks


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_a_worker_that_dies_is_replaced_and_its_part_runs_again(tmp_path):
    """TUNE-3."""
    expected = search(tmp_path / "one", settings(8))
    toy = Toy(kill_trial=3, kill_once=str(tmp_path / "died"))
    result = search(tmp_path / "ray", settings(8), where="ray", toy=toy)

    assert (tmp_path / "died").exists()
    assert decisions(result) == decisions(expected)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_a_trial_that_kills_every_worker_ends_the_search_and_is_tried_anew(tmp_path):
    """TUNE-3: whatever killed them may be gone tomorrow; a written failure would stay for ever."""
    expected = search(tmp_path / "one", settings(6))
    own = {"where": "ray", "compute": ComputeSettings(retries=1)}
    said = rf"Trial 2 \(.*{LR} .*\) could not be trained: its worker died 2 times; .*Run again"
    with pytest.raises(TrainingFailed, match=said):
        search(tmp_path / "ray", settings(6), toy=Toy(kill_trial=2), **own)
    result = search(tmp_path / "ray", settings(6))

    assert decisions(result) == decisions(expected)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_the_cause_of_failure_comes_through_ray(tmp_path):
    with pytest.raises(SearchFailed, match=r"ZeroDivisionError: the user's bug"):
        search(tmp_path, settings(4), where="ray", toy=Toy(raises=True))


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


@pytest.fixture
def short_folder():
    """Ray puts sockets into its folder, and their paths may have 107 characters."""
    folder = tempfile.mkdtemp(prefix="sl", dir="/tmp")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


DRIVER = """
    import sys
    from pathlib import Path
    from tests.sluice.tuning.toy_space import search, settings
    from tests.support.toy_search import Toy

    def hear(outcome, trials):
        print("heard", flush=True)

    toy = Toy(pause_s=0.05)
    search(Path(sys.argv[1]), settings(12, sys.argv[2]), where="ray", toy=toy, hear=hear)
"""


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(("scheduler", "after"), [("asha", 7), ("pbt", 17)])
def test_a_driver_killed_in_mid_search_leaves_nothing_behind_and_goes_on(
    scheduler, after, tmp_path, short_folder
):
    """TUNE-3: the list of trials, stops and exploits is that of a search never killed."""
    expected = search(tmp_path / "one", settings(12, scheduler))
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DRIVER), str(tmp_path / "ray"), scheduler],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_TMPDIR": short_folder},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        heard = [driver.stdout.readline() for _ in range(after)]
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.communicate(timeout=20)
    assert heard == ["heard\n"] * after
    journal = tmp_path / "ray" / "journal.ndjson"
    assert after < journal.read_bytes().count(b"\n") <= after + 3

    resumed = search(tmp_path / "ray", settings(12, scheduler))

    assert decisions(resumed) == decisions(expected)
    _wait_until_gone(short_folder)


def _wait_until_gone(mark):
    """Ray's processes name their folder on the command line."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        left = [
            p for p in psutil.process_iter(["cmdline"]) if mark in " ".join(p.info["cmdline"] or ())
        ]
        if not left:
            return
        time.sleep(0.2)
    raise AssertionError(f"outlived the driver: {left}")
