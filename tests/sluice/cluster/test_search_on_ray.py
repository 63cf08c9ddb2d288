"""Searches on Ray: same decisions as in one process, whatever dies."""

import dataclasses
import json
import os
import shutil

import pytest

from sluice.base.errors import (
    ContractError,
    IntegrityError,
    Interrupted,
    SearchFailed,
    StorageError,
    TrainingFailed,
)
from sluice.cluster.settings import ComputeSettings
from sluice.tuning.resumable import tune_trials
from sluice.tuning.resumable.journal import StudyJournal
from sluice.tuning.tuner import run_tuner
from tests.sluice.tuning.test_killed import num_lines
from tests.sluice.tuning.toy_space import decisions, search, settings
from tests.support.simulated_tune import simulate
from tests.support.small_disk import fill, small_disk
from tests.support.toy_search import LR, Toy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("ray_here"),
    # Ray leaves its result files of trials that did not end to the garbage collector.
    pytest.mark.filterwarnings(
        "ignore:.*unclosed file|.*FileIO:pytest.PytestUnraisableExceptionWarning"
    ),
]


def results_of(folder):
    """Return every result in the files that Ray itself writes."""
    files = list((folder / "tune").glob("*/result.json"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def require_reused_workers(folder):
    """Workers are used again: no process a trial, and none of them is this one."""
    processes = {found["pid"] for found in results_of(folder)}
    assert 1 <= len(processes) <= 4  # two, and those that replace one which was lost
    assert os.getpid() not in processes


def rates_of(result):
    return sorted(trial.params[LR] for trial in result.trials)


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheduler", ["asha", "pbt"])
def test_workers_on_ray_decide_nothing(scheduler, ray_here, tmp_path):
    """Reports of different length, two workers: the result is that of one process."""
    own = settings(8, scheduler)
    expected = search(tmp_path / "one", own)

    result = search(tmp_path / "ray", own, run=run_tuner, toy=Toy(pause_s=0.04))

    assert decisions(result) == decisions(expected)
    assert ray_here.is_initialized()
    require_reused_workers(tmp_path / "ray")


def test_a_lost_worker_is_replaced_and_its_trial_resumes(ray_here, tmp_path):
    """TUNE-3: so does one that the kernel kills for its memory.

    Reports of different length, two workers: the result is that of one process.
    """
    expected = search(tmp_path / "one", settings(8))
    toy = Toy(kill_above=rates_of(expected)[-2], kill_once=str(tmp_path / "died"), pause_s=0.04)
    result = search(tmp_path / "ray", settings(8), run=run_tuner, toy=toy)

    assert (tmp_path / "died").exists()
    assert decisions(result) == decisions(expected)
    assert ray_here.is_initialized()
    require_reused_workers(tmp_path / "ray")


@pytest.mark.parametrize(
    ("tune_waits_s", "num_requeued"), [(1, 1), pytest.param(None, 0, marks=pytest.mark.exhaustive)]
)
def test_a_trial_whose_worker_cannot_be_reused_gets_another(
    tune_waits_s, num_requeued, tmp_path, monkeypatch
):
    """A stopped trial that ends slowly, as on a busy GPU: Tune gives up the next of its worker."""
    requeued, requeue = [], tune_trials.requeue

    def record(controller, trial):
        requeued.append(trial)
        requeue(controller, trial)

    monkeypatch.setattr(tune_trials, "requeue", record)
    expected = search(tmp_path / "one", settings(8))
    toy = Toy(linger_s=4, lingered=str(tmp_path / "lingered"), tune_waits_s=tune_waits_s)
    result = search(tmp_path / "ray", settings(8), run=run_tuner, toy=toy)

    assert (tmp_path / "lingered").exists()
    assert len(requeued) == num_requeued
    assert decisions(result) == decisions(expected)


@pytest.mark.exhaustive
def test_a_trial_that_kills_every_worker_ends_the_search_and_is_tried_again(tmp_path):
    """TUNE-3: the cause may be transient; a recorded failure would be permanent."""
    expected = search(tmp_path / "one", settings(4))
    rate = rates_of(expected)[-1]
    said = rf"The trial with {LR} {rate}.* could not be trained: "
    with pytest.raises(TrainingFailed, match=said) as caught:
        search(
            tmp_path / "ray",
            settings(4),
            run=run_tuner,
            toy=Toy(kill_above=rates_of(expected)[-2]),
            compute=ComputeSettings(retries=1),
        )
    result = search(tmp_path / "ray", settings(4), run=run_tuner)

    assert "its memory ran out or its machine was lost" in caught.value.cause
    assert "Run again" in caught.value.fix
    assert decisions(result) == decisions(expected)


def test_the_cause_of_failure_comes_through_ray(tmp_path):
    with pytest.raises(SearchFailed, match=r"ZeroDivisionError: the user's bug \(raised at .*py"):
        search(tmp_path, settings(2), run=run_tuner, toy=Toy(raises=True))


@pytest.mark.exhaustive
def test_a_disk_that_fills_up_ends_the_search_with_what_to_do(tmp_path):
    """TUNE-3: on the study's storage, where workers write checkpoints and this process results."""
    own = settings(4)
    expected = search(tmp_path / "one", own)
    with small_disk(tmp_path / "disk", kib=4000) as disk:
        ballast = []

        def on_report(_trial, _trials):
            ballast.append(None)
            if len(ballast) == 4:
                ballast[-1] = fill(disk)

        with pytest.raises(StorageError, match=r"No room left to write .*Free disk space"):
            search(
                disk / "ray",
                own,
                run=run_tuner,
                on_report=on_report,
                toy=Toy(pause_s=0.02),
                compute=ComputeSettings(retries=0),
            )
        ballast[3].unlink()
        resumed = search(disk / "ray", own, run=run_tuner)

    assert decisions(resumed) == decisions(expected)


def stopped(folder, own, *, after, run=run_tuner):
    """Run a search until this number of reports."""
    received = []

    def stop(*event):
        received.append(event)
        if len(received) == after:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="Run again to resume"):
        search(folder, own, run=run, on_report=stop)


@pytest.mark.exhaustive
def test_a_search_stopped_and_started_again_in_one_process_goes_on(tmp_path):
    """As in a notebook: the Ray that it joined lives on, and must not keep the first workers."""
    own = settings(4)
    expected = search(tmp_path / "one", own)
    stopped(tmp_path / "ray", own, after=5)

    assert decisions(search(tmp_path / "ray", own, run=run_tuner)) == decisions(expected)


@pytest.mark.exhaustive
def test_checkpoints_removed_between_stop_and_resume_are_named(tmp_path):
    own = settings(4)
    stopped(tmp_path, own, after=5)
    shutil.rmtree(tmp_path / "tune")

    with pytest.raises(IntegrityError, match="checkpoint as it does not exist") as caught:
        search(tmp_path, own, run=run_tuner, compute=ComputeSettings(retries=0))
    assert "remove the study's folder to run the search again" in caught.value.fix


@pytest.mark.exhaustive
def test_a_second_process_on_a_study_is_refused(tmp_path):
    own = settings(4)
    stopped(tmp_path, own, after=2)
    path = tmp_path / "journal.jsonl"
    header = json.loads(path.read_bytes().splitlines()[0])
    subject = {key: value for key, value in header.items() if key != "version"}
    before = num_lines(tmp_path)
    other = StudyJournal(path, subject)  # as another process that runs the study
    with pytest.raises(ContractError, match="Another process runs the study"):
        search(tmp_path, own, run=run_tuner)
    other.close()

    assert num_lines(tmp_path) == before
    assert decisions(search(tmp_path, own, run=run_tuner)) == decisions(search(tmp_path / "a", own))


@pytest.mark.parametrize("first", [simulate, pytest.param(run_tuner, marks=pytest.mark.exhaustive)])
def test_settings_changed_between_stop_and_resume_are_named(first, tmp_path):
    """They are compared before Ray is used, whatever ran the study first."""
    stopped(tmp_path, settings(4), after=2, run=first)
    with pytest.raises(ContractError, match=r"search\.seed was 3, now 4"):
        search(tmp_path, settings(4, seed=4), run=run_tuner)
    with pytest.raises(ContractError, match=r"objective\.toy was 1, now 2"):
        search(tmp_path, settings(4), run=run_tuner, toy=Another())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Another(Toy):
    """Other code or data."""

    def subject(self):
        return {"toy": 2}
