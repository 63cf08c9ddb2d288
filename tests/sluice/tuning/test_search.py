"""A killed search resumes with the same decisions; failures are reported with their cause."""

import math
import os
import signal
from collections import Counter

import pytest

from sluice.base.errors import ContractError, Interrupted, SearchFailed, SettingsError, StorageError
from sluice.cluster.settings import ComputeSettings
from sluice.tuning.records import SearchResult
from sluice.tuning.settings import SearchSettings
from sluice.tuning.workload_search import search_workload
from sluice.workloads.load import load_workload
from tests.sluice.tuning.conftest import SINE
from tests.sluice.tuning.toy_space import HERE, decisions, ignore, search, settings, space
from tests.support.simulated_tune import simulate
from tests.support.toy_search import LR, Toy

CASES = {
    "random": settings(12, "auto", seed=1),
    "tpe": settings(20, "auto"),
    "asha": settings(14, "asha", startup_trials=5),
    "pbt": settings(8, "pbt"),
}


@pytest.mark.parametrize("case", CASES)
def test_search_finds_the_planted_optimum(case, tmp_path):
    result = search(tmp_path, CASES[case])

    assert abs(math.log10(result.winner.params[LR]) + 2) < 0.5
    assert result.setup.training.at(27).learning_rate == result.winner.params[LR]
    assert result.num_trials == len(result.trials) == CASES[case].num_trials
    assert result.winner.loss == min(t.loss for t in result.trials)
    assert SearchResult.model_validate_json(result.model_dump_json()) == result


@pytest.mark.parametrize("case", ["random", "tpe", "asha"])
def test_bad_trials_are_pruned(case, tmp_path):
    """TUNE-2: pruning is always enabled."""
    result = search(tmp_path, CASES[case])
    states = Counter(t.state for t in result.trials)

    assert states["pruned"] >= 3
    assert states["finished"] >= 2
    assert all(t.reason.startswith("Epoch ") for t in result.trials if t.state == "pruned")


def num_lines(folder):
    return (folder / "journal.jsonl").read_bytes().count(b"\n")


def run_and_kill(folder, search_settings, *, after):
    """Run a search in a process killed after ``after`` reports; return whether it was killed."""
    child = os.fork()
    if child == 0:
        received = []

        def die(*event):
            received.append(event)
            if len(received) == after:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            search(folder, search_settings, on_report=die)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.exhaustive if case in ("random", "tpe") else ())
        for case in CASES
    ],
)
def test_repeatedly_killed_search_makes_the_same_decisions(case, tmp_path):
    """TUNE-3: with SIGKILL every few reports, trials, stops and copies are the same."""
    search_settings, cut = CASES[case], tmp_path / "killed"
    expected = search(tmp_path / "whole", search_settings)

    kills = 0
    while run_and_kill(cut, search_settings, after=2 + 2 * (kills % 3)):
        kills += 1
        if kills % 2 == 0:  # a kill during a write leaves a partial line
            journal = cut / "journal.jsonl"
            journal.write_bytes(journal.read_bytes()[:-9])
    resumed = search(cut, search_settings)

    assert kills >= 4
    assert decisions(resumed) == decisions(expected)
    assert num_lines(cut) == num_lines(tmp_path / "whole")  # nothing is reported twice


def test_finished_search_is_read_and_not_run_again(tmp_path):
    first, received = search(tmp_path), []
    again = search(tmp_path, on_report=lambda *each: received.append(each), toy=Toy(raises=True))

    assert again == first
    assert received == []


def test_changed_setting_is_rejected_by_name_but_changed_resources_are_accepted(tmp_path):
    search(tmp_path, settings(4))
    with pytest.raises(ContractError, match=r"search\.num_trials was 4, now 5"):
        search(tmp_path, settings(5))
    with pytest.raises(ContractError, match=r"learning_rate\.high was 1\.0, now 0\.5"):
        search(
            tmp_path,
            settings(4),
            own_space=space(**{LR: {"kind": "log_uniform", "low": 1e-4, "high": 0.5}}),
        )
    search(tmp_path, settings(4), compute=ComputeSettings(cpus_per_worker=2.0, retries=9))


def test_diverging_trials_fail_and_the_others_continue(tmp_path):
    result = search(tmp_path, toy=Toy(nan_above=0.1))

    failed = [t for t in result.trials if t.state == "failed"]
    assert failed
    assert all(t.params[LR] > 0.1 and "nan at epoch 1" in t.reason for t in failed)
    assert result.winner.params[LR] <= 0.1


@pytest.mark.parametrize(
    ("toy", "message"),
    [
        (Toy(raises=True), r"ZeroDivisionError: the user's bug \(raised at .*toy_search\.py"),
        (Toy(nan_above=0.0), "train_loss is nan at epoch 1"),
    ],
)
@pytest.mark.parametrize("scheduler", ["asha", "pbt"])
def test_search_without_a_finite_trial_reports_the_first_cause(toy, message, scheduler, tmp_path):
    with pytest.raises(SearchFailed, match=message) as caught:
        search(tmp_path, settings(8, scheduler), toy=toy)
    assert caught.value.exit_code == 1
    assert f"remove {tmp_path} and run again" in caught.value.fix


def test_ctrl_c_keeps_finished_work(tmp_path):
    expected = search(tmp_path / "whole")

    def stop(trial, _trials):
        if trial.id == 6:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=r"with \d+ of 12 trials ended"):
        search(tmp_path / "stopped", on_report=stop)
    assert decisions(search(tmp_path / "stopped")) == decisions(expected)


def test_unwritable_folder_stops_the_search(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        search(tmp_path / "file" / "search")


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", [pytest.param("asha", marks=pytest.mark.exhaustive), "pbt"])
def test_search_of_a_workload_is_reproducible_and_so_is_its_winner(scheduler, objective, tmp_path):
    sine_objective, home = objective(), tmp_path / "home"
    workload = load_workload(sine_objective.workload, {}, where="test")
    frame = workload.compute_features(workload.load_rows())
    options = {"grace_epochs": 2, "perturbation_epochs": 2}

    def run(folder):
        return search_workload(
            sine_objective.workload,
            {},
            SINE,
            None,
            SearchSettings(num_trials=6, scheduler=scheduler, **options),
            table=sine_objective.table,
            folds=workload.plan_folds(frame),
            artifacts=home / "artifacts",
            folder=folder,
            compute=HERE,
            on_report=ignore,
            run=simulate,
        )

    result = run(tmp_path / "a")
    assert decisions(run(tmp_path / "b")) == decisions(result)
    winner = result.winner
    again = sine_objective.train(winner.schedule, start=None, report_epochs=(len(winner.epochs),))
    assert next(again).epochs == winner.epochs


def test_gpu_training_on_workers_without_a_gpu_is_rejected(objective, tmp_path):
    sine_objective = objective()
    workload = load_workload(sine_objective.workload, {}, where="test")
    training = SINE.training.model_copy(update={"device": "cuda"})
    with pytest.raises(SettingsError, match=r"'cuda', but compute\.gpus_per_worker is 0\."):
        search_workload(
            sine_objective.workload,
            {},
            SINE.model_copy(update={"training": training}),
            None,
            SearchSettings(num_trials=6),
            table=sine_objective.table,
            folds=workload.plan_folds(workload.compute_features(workload.load_rows())),
            artifacts=tmp_path / "home" / "artifacts",
            folder=tmp_path / "search",
            compute=HERE,
            on_report=ignore,
        )


def test_pbt_changes_at_the_last_epoch_are_ignored(tmp_path):
    """With 27 epochs and a step every 9, the last step falls on the last epoch."""
    result = search(tmp_path, settings(8, "pbt", perturbation_epochs=9))
    steps = [step.from_epoch for trial in result.trials for step in trial.schedule]

    assert 0 < max(steps) < 27
    assert max(exploit.epoch for exploit in result.exploits) < 27
    assert all(change.from_epoch < 27 for change in result.setup.training.changes)
