"""Whole studies of Ray's schedulers and searchers, made from settings, on a toy objective."""

import copy
import json
import math

import pytest

from sluice.training.settings import TrainSettings
from sluice.tuning.lanes import most_at_a_time
from sluice.tuning.resumable.study import Event, Study
from sluice.tuning.schedulers import TIME_ATTR, make_scheduler, metric_of
from sluice.tuning.searchers import make_searcher
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import Setup
from sluice.tuning.strategy import plan_search, report_epochs_of
from sluice.tuning.tune_space import decode
from tests.sluice.tuning.test_lanes import HERE
from tests.sluice.tuning.toy_space import space
from tests.support.toy_search import LR

# PB2's Gaussian process: bounds of a kernel, and options that scipy will remove.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The optimal value found",
    "ignore:lbfgs failed to converge",
    "ignore:scipy.optimize.*:DeprecationWarning",
)

BASE = Setup(training=TrainSettings(max_epochs=27))
CASES = {
    "asha": {"scheduler": "asha", "num_trials": 24, "grace_epochs": 3},
    "median, tpe": {"num_trials": 24, "grace_epochs": 4, "startup_trials": 5},
    "pbt": {"scheduler": "pbt", "num_trials": 8},
    "pb2": {"scheduler": {"class": "ray.tune.schedulers.pb2:PB2"}, "num_trials": 6}
    | {"report_epochs": 5},
    "hyperband": {"scheduler": {"class": "ray.tune.schedulers:HyperBandScheduler"}}
    | {"num_trials": 12, "report_epochs": 3},
    "none": {"scheduler": "none", "num_trials": 6},
}


def far(params):
    return (math.log10(params[LR]) + 2) ** 2


class Toy:
    """A study whose trials are near or far from a planted optimum, and fail above a rate of 0.3."""

    def __init__(self, case, folder):
        self.settings = SearchSettings.parse({"seed": 2} | CASES[case], where="search")
        self.strategy, self.space = plan_search(space(), self.settings, BASE)
        self.epochs = report_epochs_of(self.strategy, self.settings, 27)
        self.folder, self.journal = folder, []

    def run(self, most=math.inf):
        metric = metric_of(self.strategy)
        study = Study(
            make_scheduler(self.settings, self.strategy, self.space, 27),
            make_searcher(self.settings, self.strategy, self.space, BASE, metric),
            metric=metric,
            time_attr=TIME_ATTR,
            num_samples=self.settings.num_trials,
            num_slots=most_at_a_time(self.settings, HERE),
            ordered=True,
            seed=self.settings.seed,
            folder=str(self.folder),
            record=lambda line: self.journal.append(json.loads(json.dumps(line))),
        )
        # What the scheduler waits for: 'mode' is set as TuneConfig sets it.
        study._scheduler.set_search_properties(metric, "min")
        study.replay(copy.deepcopy(self.journal))
        while not study.is_finished() and most > 0:
            for trial in study.running():
                if not study.is_waiting(trial.number):
                    study.receive(self.event(trial))
                    break
            most -= 1
        return study

    def event(self, trial):
        params = decode(self.space, BASE, trial.config)
        assert all(self.space.parameters[path].holds(value) for path, value in params.items())
        ahead = [epoch for epoch in self.epochs if epoch > trial.time]
        if not ahead:
            result = dict(trial.last_result)
            return Event(trial=trial.number, attempt=trial.attempt, kind="complete", result=result)
        loss = math.nan if params[LR] > 0.3 else far(params) + 1 / ahead[0]
        result = {"epoch": ahead[0], "loss": loss, "val_loss": loss}
        return Event(
            trial=trial.number,
            attempt=trial.attempt,
            kind="result",
            result=result,
            checkpoint=f"{trial.number}_{trial.attempt}_{ahead[0]}",
        )


def outcome(study):
    return [(t.config, t.status, t.reason, t.time, t.attempt) for t in study.trials]


@pytest.mark.parametrize("case", CASES)
def test_a_study_that_goes_on_from_its_journal_ends_as_one_that_was_not_stopped(case, tmp_path):
    whole = Toy(case, tmp_path).run()
    for events in (3, 11, 30):
        toy = Toy(case, tmp_path)
        toy.run(events)

        assert outcome(toy.run()) == outcome(whole)
    statuses = {trial.status for trial in whole.trials}
    assert statuses <= {"TERMINATED", "ERROR"}
    assert "TERMINATED" in statuses


@pytest.mark.parametrize("case", ["asha", "median, tpe", "hyperband"])
def test_weak_trials_are_stopped_and_strong_ones_reach_the_end(case, tmp_path):
    toy = Toy(case, tmp_path)
    ended = [t for t in toy.run().trials if t.status == "TERMINATED"]
    early = [far(decode(toy.space, BASE, t.config)) for t in ended if t.time < 27]
    late = [far(decode(toy.space, BASE, t.config)) for t in ended if t.time >= 27]

    assert early
    assert late
    assert sum(late) / len(late) < sum(early) / len(early)


@pytest.mark.parametrize("case", ["pbt", "pb2"])
def test_members_of_a_population_copy_others_and_change_only_what_may_change(case, tmp_path):
    toy = Toy(case, tmp_path)
    study = toy.run()
    first = {line["trial"]: line["config"] for line in toy.journal if "config" in line}
    copied = [trial for trial in study.trials if trial.attempt]

    assert copied
    changing = {"training.learning_rate", "training.weight_decay"}
    for trial in copied:
        fixed = {k: v for k, v in trial.config.items() if k not in changing}
        theirs = [{k: v for k, v in c.items() if k not in changing} for c in first.values()]
        assert fixed in theirs
