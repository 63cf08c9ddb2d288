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

import pytest

from sluice.cluster.ray_pool import open_ray_pool
from sluice.cluster.settings import ComputeSettings
from sluice.errors import SearchFailed, SettingsError
from tests.sluice.tuning.toy_space import decisions, search, settings
from tests.support.toy_search import Toy

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def ray_here():
    """One Ray for all tests of the module; a search uses it and leaves it running."""
    import ray

    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=100_000_000,
    )
    yield ray
    ray.shutdown()


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
        open_ray_pool(Toy(), tmp_path, ComputeSettings(address=address), most=4),
    ):
        pass
    assert time.monotonic() - started < 8


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["asha", "pbt"])
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


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_a_worker_that_dies_is_replaced_and_its_part_runs_again(tmp_path):
    """TUNE-3."""
    expected = search(tmp_path / "one", settings(8))
    toy = Toy(kill_trial=3, kill_once=str(tmp_path / "died"))
    result = search(tmp_path / "ray", settings(8), where="ray", toy=toy)

    assert (tmp_path / "died").exists()
    assert decisions(result) == decisions(expected)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_a_trial_that_kills_every_worker_fails_alone(tmp_path):
    result = search(
        tmp_path,
        settings(6),
        where="ray",
        toy=Toy(kill_trial=2),
        compute=ComputeSettings(retries=1),
    )

    assert [t.id for t in result.trials if t.state == "failed"] == [2]
    assert "worker died 2 times" in result.trials[2].reason


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_the_cause_of_failure_comes_through_ray(tmp_path):
    with pytest.raises(SearchFailed, match=r"ZeroDivisionError: the user's bug"):
        search(tmp_path, settings(4), where="ray", toy=Toy(raises=True))


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
@pytest.mark.parametrize(("name", "wanted"), [("gpus_per_worker", 0.5), ("cpus_per_worker", 3.0)])
def test_more_than_there_is_is_refused(name, wanted, tmp_path):
    with (
        pytest.raises(SettingsError, match=rf"A training reserves {wanted:g} .PU \({name}\)"),
        open_ray_pool(Toy(), tmp_path, ComputeSettings(**{name: wanted}), most=4),
    ):
        pass


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
    import psutil

    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        left = [
            p for p in psutil.process_iter(["cmdline"]) if mark in " ".join(p.info["cmdline"] or ())
        ]
        if not left:
            return
        time.sleep(0.2)
    raise AssertionError(f"outlived the driver: {left}")
