"""Whole studies of Ray's schedulers and searchers, made from settings, on a toy objective."""

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
"""Trials are near or far from a planted optimum, and fail above a rate of 0.3."""


def own(case):
    return SearchSettings.parse({"seed": 2} | CASES[case], where="search")


def stopped(folder, case, *, after):
    """Search until this number of reports was received; their decisions are on disk."""
    received = []

    def on_report(*event):
        received.append(event)
        if len(received) == after:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="Run again to resume"):
        search(folder, own(case), toy=TOY, on_report=on_report)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_study_that_goes_on_from_its_journal_ends_as_one_that_was_not_stopped(case, tmp_path):
    whole = search(tmp_path / "whole", own(case), toy=TOY)
    for after in (2, 3, 4):
        stopped(tmp_path / "cut", case, after=after)

    assert decisions(search(tmp_path / "cut", own(case), toy=TOY)) == decisions(whole)
    assert {trial.state for trial in whole.trials} <= {"finished", "pruned", "failed"}


@pytest.mark.parametrize("case", ["median, tpe", "hyperband"])
def test_weak_trials_are_stopped_and_strong_ones_reach_the_end(case, tmp_path):
    trials = search(tmp_path, own(case), toy=TOY).trials
    far = {
        state: [(math.log10(t.params[LR]) + 2) ** 2 for t in trials if t.state == state]
        for state in ("pruned", "finished")
    }

    assert min(map(len, far.values())) > 0
    assert sum(far["finished"]) / len(far["finished"]) < sum(far["pruned"]) / len(far["pruned"])


@pytest.mark.parametrize("scheduler", ["pbt", {"class": "ray.tune.schedulers.pb2:PB2"}])
def test_members_of_a_population_copy_others_and_change_only_what_may_change(scheduler, tmp_path):
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
