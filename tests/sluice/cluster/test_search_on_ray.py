"""Searches on Ray make the same decisions as in one process, even if workers or drivers die."""

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


def read_results(folder):
    """Return every result in the files that Ray itself writes."""
    files = list((folder / "tune").glob("*/result.json"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def require_reused_workers(folder):
    """Require that workers are reused for several trials, in processes other than this one."""
    processes = {result["pid"] for result in read_results(folder)}
    assert 1 <= len(processes) <= 4  # two workers, and replacements of a lost one
    assert os.getpid() not in processes


def learning_rates(result):
    return sorted(trial.params[LR] for trial in result.trials)


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheduler", ["asha", "pbt"])
def test_the_speed_of_workers_does_not_change_decisions(scheduler, ray_here, tmp_path):
    """Two workers whose reports take different times give the result of one process."""
    search_settings = settings(8, scheduler)
    expected = search(tmp_path / "one", search_settings)

    result = search(tmp_path / "ray", search_settings, run=run_tuner, toy=Toy(pause_s=0.04))

    assert decisions(result) == decisions(expected)
    assert ray_here.is_initialized()
    require_reused_workers(tmp_path / "ray")


def test_a_lost_worker_is_replaced_and_its_trial_resumes(ray_here, tmp_path):
    """TUNE-3: the worker is killed, as when its memory runs out.

    Two workers whose reports take different times give the result of one process.
    """
    expected = search(tmp_path / "one", settings(8))
    toy = Toy(
        kill_above=learning_rates(expected)[-2], kill_once=str(tmp_path / "died"), pause_s=0.04
    )
    result = search(tmp_path / "ray", settings(8), run=run_tuner, toy=toy)

    assert (tmp_path / "died").exists()
    assert decisions(result) == decisions(expected)
    assert ray_here.is_initialized()
    require_reused_workers(tmp_path / "ray")


@pytest.mark.parametrize(
    ("tune_waits_s", "num_requeued"), [(1, 1), pytest.param(None, 0, marks=pytest.mark.exhaustive)]
)
def test_a_trial_whose_worker_cannot_be_reused_is_requeued(
    tune_waits_s, num_requeued, tmp_path, monkeypatch
):
    """If a stopped trial ends slowly, as on a busy GPU, Tune drops the next trial of its worker."""
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
def test_a_trial_that_kills_every_worker_ends_the_search_and_is_retried_on_resume(tmp_path):
    """TUNE-3: the cause may be transient; a recorded failure would be permanent."""
    expected = search(tmp_path / "one", settings(4))
    rate = learning_rates(expected)[-1]
    message = rf"The trial with {LR} {rate}.* could not be trained: "
    with pytest.raises(TrainingFailed, match=message) as caught:
        search(
            tmp_path / "ray",
            settings(4),
            run=run_tuner,
            toy=Toy(kill_above=learning_rates(expected)[-2]),
            compute=ComputeSettings(retries=1),
        )
    result = search(tmp_path / "ray", settings(4), run=run_tuner)

    assert "its memory ran out or its machine was lost" in caught.value.cause
    assert "Run again" in caught.value.fix
    assert decisions(result) == decisions(expected)


def test_an_error_of_user_code_is_reported_with_its_location(tmp_path):
    with pytest.raises(SearchFailed, match=r"ZeroDivisionError: the user's bug \(raised at .*py"):
        search(tmp_path, settings(2), run=run_tuner, toy=Toy(raises=True))


@pytest.mark.exhaustive
def test_a_full_disk_ends_the_search_with_a_fix(tmp_path):
    """TUNE-3: workers write checkpoints and this process writes results to the same disk."""
    search_settings = settings(4)
    expected = search(tmp_path / "one", search_settings)
    with small_disk(tmp_path / "disk", kib=4000) as disk:
        ballast = []

        def on_report(_trial, _trials):
            ballast.append(None)
            if len(ballast) == 4:
                ballast[-1] = fill(disk)

        with pytest.raises(StorageError, match=r"No room left to write .*Free disk space"):
            search(
                disk / "ray",
                search_settings,
                run=run_tuner,
                on_report=on_report,
                toy=Toy(pause_s=0.02),
                compute=ComputeSettings(retries=0),
            )
        ballast[3].unlink()
        resumed = search(disk / "ray", search_settings, run=run_tuner)

    assert decisions(resumed) == decisions(expected)


def interrupt_search(folder, search_settings, *, after, run=run_tuner):
    """Interrupt a search after a number of reports."""
    received = []

    def stop(*event):
        received.append(event)
        if len(received) == after:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="Run again to resume"):
        search(folder, search_settings, run=run, on_report=stop)


@pytest.mark.exhaustive
def test_a_search_resumes_in_the_process_in_which_it_was_interrupted(tmp_path):
    """As in a notebook, Ray stays initialized, and must not keep the workers of the first run."""
    search_settings = settings(4)
    expected = search(tmp_path / "one", search_settings)
    interrupt_search(tmp_path / "ray", search_settings, after=5)

    assert decisions(search(tmp_path / "ray", search_settings, run=run_tuner)) == decisions(
        expected
    )


@pytest.mark.exhaustive
def test_checkpoints_removed_before_a_resume_are_reported(tmp_path):
    search_settings = settings(4)
    interrupt_search(tmp_path, search_settings, after=5)
    shutil.rmtree(tmp_path / "tune")

    with pytest.raises(IntegrityError, match="checkpoint as it does not exist") as caught:
        search(tmp_path, search_settings, run=run_tuner, compute=ComputeSettings(retries=0))
    assert "remove the study's folder to run the search again" in caught.value.fix


@pytest.mark.exhaustive
def test_a_second_process_on_a_study_is_refused(tmp_path):
    search_settings = settings(4)
    interrupt_search(tmp_path, search_settings, after=2)
    path = tmp_path / "journal.jsonl"
    header = json.loads(path.read_bytes().splitlines()[0])
    subject = {key: value for key, value in header.items() if key != "version"}
    before = num_lines(tmp_path)
    other = StudyJournal(path, subject)  # as of another process that runs the study
    with pytest.raises(ContractError, match="Another process runs the study"):
        search(tmp_path, search_settings, run=run_tuner)
    other.close()

    assert num_lines(tmp_path) == before
    assert decisions(search(tmp_path, search_settings, run=run_tuner)) == decisions(
        search(tmp_path / "a", search_settings)
    )


@pytest.mark.parametrize("first", [simulate, pytest.param(run_tuner, marks=pytest.mark.exhaustive)])
def test_settings_changed_before_a_resume_are_reported(first, tmp_path):
    """Settings are compared before Ray is used, whichever runner started the study."""
    interrupt_search(tmp_path, settings(4), after=2, run=first)
    with pytest.raises(ContractError, match=r"search\.seed was 3, now 4"):
        search(tmp_path, settings(4, seed=4), run=run_tuner)
    with pytest.raises(ContractError, match=r"objective\.toy was 1, now 2"):
        search(tmp_path, settings(4), run=run_tuner, toy=ChangedToy())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChangedToy(Toy):
    """A toy objective with a different subject, as with other code or data."""

    def subject(self):
        return {"toy": 2}
