"""Whole studies with schedulers and searchers of Ray Tune on a toy objective."""

import math

import pytest

from sluice.base.errors import Interrupted
from sluice.tuning.settings import SearchSettings
from tests.sluice.tuning.toy_space import decisions, search
from tests.support.toy_search import LR, Toy

# PB2's Gaussian process: bounds of a kernel, and options that scipy will remove.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The optimal value found",
    "ignore:lbfgs failed to converge",
    "ignore:scipy.optimize.*:DeprecationWarning",
)

CASES = {
    "median, tpe": {"num_trials": 24, "grace_epochs": 4, "startup_trials": 5},
    "pb2": {"scheduler": {"class": "ray.tune.schedulers.pb2:PB2"}, "num_trials": 6}
    | {"report_epochs": 5},
    "hyperband": {"scheduler": {"class": "ray.tune.schedulers:HyperBandScheduler"}}
    | {"num_trials": 12, "report_epochs": 3},
    "none": {"scheduler": "none", "num_trials": 6},
}
TOY = Toy(nan_above=0.3)
"""Objective with a planted optimum; trials with a learning rate above 0.3 fail."""


def parse_settings(case):
    return SearchSettings.parse({"seed": 2} | CASES[case], where="search")


def interrupt_search(folder, case, *, after):
    """Run a search and interrupt it after ``after`` reports."""
    received = []

    def on_report(*event):
        received.append(event)
        if len(received) == after:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="Run again to resume"):
        search(folder, parse_settings(case), toy=TOY, on_report=on_report)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_study_resumed_from_its_journal_makes_the_same_decisions(case, tmp_path):
    whole = search(tmp_path / "whole", parse_settings(case), toy=TOY)
    for after in (2, 3, 4):
        interrupt_search(tmp_path / "cut", case, after=after)

    assert decisions(search(tmp_path / "cut", parse_settings(case), toy=TOY)) == decisions(whole)
    assert {trial.state for trial in whole.trials} <= {"finished", "pruned", "failed"}


@pytest.mark.parametrize("case", ["median, tpe", "hyperband"])
def test_pruned_trials_are_farther_from_the_optimum_than_finished_ones(case, tmp_path):
    trials = search(tmp_path, parse_settings(case), toy=TOY).trials
    distances = {
        state: [(math.log10(t.params[LR]) + 2) ** 2 for t in trials if t.state == state]
        for state in ("pruned", "finished")
    }

    assert min(map(len, distances.values())) > 0
    assert sum(distances["finished"]) / len(distances["finished"]) < sum(distances["pruned"]) / len(
        distances["pruned"]
    )


@pytest.mark.parametrize("scheduler", ["pbt", {"class": "ray.tune.schedulers.pb2:PB2"}])
def test_population_copies_trials_and_changes_only_changeable_settings(scheduler, tmp_path):
    settings = SearchSettings.parse(
        {"scheduler": scheduler, "num_trials": 8, "report_epochs": 5, "seed": 2}, where="search"
    )
    result = search(tmp_path, settings, toy=TOY)
    changing = {LR, "training.weight_decay"}

    assert all(exploit.donor != exploit.trial for exploit in result.exploits)
    assert sum(len(trial.schedule) > 1 for trial in result.trials) > 0
    for trial in result.trials:
        for step in trial.schedule[1:]:
            assert step.params.keys() == trial.schedule[0].params.keys()
            moved = {n for n, v in step.params.items() if v != trial.schedule[0].params[n]}
            assert moved <= changing
