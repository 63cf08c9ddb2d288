"""Decisions of Tune's schedulers are a function of the study: no speed and no kill changes them."""

import copy
import math
import random

import optuna
import pytest
from ray import tune
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)
from ray.tune.search.optuna import OptunaSearch

from sluice.base.errors import ContractError
from sluice.tuning.resumable.event_order import ArrivalStudy, OrderedStudy
from sluice.tuning.resumable.events import StudyEvent

MAX_EPOCHS = 27
TIMES = {"time_attr": "epoch", "metric": "loss", "mode": "min"}
MUTATIONS = {"lr": tune.loguniform(1e-4, 1e-1)}
SCHEDULERS = {
    "asha": lambda: ASHAScheduler(**TIMES, max_t=MAX_EPOCHS, reduction_factor=3),
    "asha, random brackets": lambda: ASHAScheduler(
        **TIMES, max_t=MAX_EPOCHS, reduction_factor=3, brackets=3
    ),
    "median": lambda: MedianStoppingRule(**TIMES, grace_period=3),
    "hyperband": lambda: HyperBandScheduler(**TIMES, max_t=MAX_EPOCHS),
    "pbt": lambda: PopulationBasedTraining(
        **TIMES, perturbation_interval=5, hyperparam_mutations=MUTATIONS
    ),
    "pbt, synchronous": lambda: PopulationBasedTraining(
        **TIMES, perturbation_interval=5, hyperparam_mutations=MUTATIONS, synch=True
    ),
    "none": FIFOScheduler,
}


def tpe(seed=0):
    space = {"lr": tune.loguniform(1e-4, 1e-1), "decay": tune.uniform(0, 1)}
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=5, multivariate=True)
    return OptunaSearch(space, metric="loss", mode="min", sampler=sampler)


class Cluster:
    """Workers of different speed, and a disk that survives a kill of the driver.

    A trial's state is one number; each epoch lowers it by what the learning rate allows.
    """

    def __init__(self, scheduler, *, workers, speed, ordered=True, searcher=tpe, num_samples=16):
        self.make = SCHEDULERS[scheduler]
        self.workers, self.rng = workers, random.Random(speed)
        self.ordered, self.searcher, self.num_samples = ordered, searcher, num_samples
        self.disk, self.journal, self.reports = {}, [], 0

    def run(self, reports=math.inf, *, folder):
        """Run the study, or go on with it, for this many reports; return it."""
        study = (OrderedStudy if self.ordered else ArrivalStudy)(
            self.make(),
            self.searcher(),
            metric="loss",
            time_attr="epoch",
            num_samples=self.num_samples,
            num_slots=6 if self.ordered else None,
            seed=1,
            folder=str(folder),
            record=lambda line, _: self.journal.append(copy.deepcopy(line)),
        )
        study.replay(copy.deepcopy(self.journal))
        while reports > 0:
            self.give_workers(study)
            if study.is_finished():
                break
            idle = [
                trial
                for trial in study.running_trials()
                if not study.has_pending_event(trial.number)
            ]
            self.report(study, self.rng.choice(idle[: self.workers]))
            reports -= 1
        return study

    def give_workers(self, study):
        """Do what Tune does without an order: suggest while nothing is pending, start what fits."""
        while not self.ordered and len(study.running_trials()) < self.workers:
            study.suggest()
            if study.next_to_start() is None:
                return
            study.receive(StudyEvent(trial=study.next_to_start(), kind="start"))

    def report(self, study, trial):
        path, start = study.latest_checkpoint(trial.number)
        loss = self.disk[path] if path else 3.0
        epoch = int(start.get("epoch", 0)) + 1
        kind = "complete" if epoch > MAX_EPOCHS else "result"
        if kind == "complete":
            study.receive(StudyEvent(trial=trial.number, attempt=trial.attempt, kind=kind))
            return
        loss -= 0.1 * math.exp(-abs(math.log10(trial.config["lr"]) + 2.5) - epoch / 20)
        path = f"{trial.number}-{trial.attempt}-{epoch}"
        self.disk[path] = loss
        result = {"epoch": epoch, "loss": loss + 0.05 * trial.config.get("decay", 0)}
        study.receive(self.event(trial, kind, result, path))

    def event(self, trial, kind, result, path):
        return StudyEvent(
            trial=trial.number,
            attempt=trial.attempt,
            kind=kind,
            result={key: result[key] for key in ("epoch", "loss")},
            checkpoint=path,
        )


def decisions(study):
    return [
        (trial.number, trial.status, trial.time, trial.attempt, trial.start, trial.config)
        for trial in study.trials
    ]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_in_order_the_decisions_do_not_depend_on_workers_or_their_speed(scheduler, tmp_path):
    runs = [
        decisions(Cluster(scheduler, workers=workers, speed=speed).run(folder=tmp_path))
        for workers, speed in ((1, 0), (2, 1), (4, 2), (16, 3))
    ]

    assert len(runs[0]) == 16
    assert runs[1:] == runs[:1] * 3


@pytest.mark.parametrize("scheduler", ["asha", "pbt", "pbt, synchronous", "hyperband"])
def test_the_schedulers_decide_something(scheduler, tmp_path):
    study = Cluster(scheduler, workers=4, speed=0).run(folder=tmp_path)

    stopped = sum(trial.time < MAX_EPOCHS for trial in study.trials)
    copied = sum(trial.attempt for trial in study.trials)
    assert (copied if "pbt" in scheduler else stopped) >= 5


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_killed_at_any_moment_a_study_ends_as_one_that_was_not(scheduler, tmp_path):
    whole = decisions(Cluster(scheduler, workers=4, speed=0).run(folder=tmp_path))
    cluster = Cluster(scheduler, workers=4, speed=1)
    kills = random.Random(5)
    study = cluster.run(kills.randrange(80), folder=tmp_path)
    while not study.is_finished():
        cluster.workers = kills.choice([1, 2, 8])
        study = cluster.run(kills.randrange(120), folder=tmp_path)

    assert decisions(study) == whole


@pytest.mark.parametrize("scheduler", ["asha", "median", "pbt", "hyperband"])
def test_without_order_a_kill_changes_nothing_that_was_decided_before(scheduler, tmp_path):
    cluster = Cluster(scheduler, workers=4, speed=0, ordered=False)
    kills = random.Random(5)
    before = cluster.run(kills.randrange(120), folder=tmp_path)
    for _ in range(100):
        after = cluster.run(0, folder=tmp_path)
        assert decisions(after) == decisions(before)
        before = cluster.run(kills.randrange(120), folder=tmp_path)
        if before.is_finished():
            break
    ended = [trial for trial in before.trials if trial.is_finished()]

    assert len(ended) == 16
    assert sum(trial.status == "TERMINATED" for trial in ended) >= 14


def test_a_searcher_without_a_seed_is_refused_when_the_study_goes_on(tmp_path):
    cluster = Cluster("asha", workers=2, speed=0, searcher=lambda: tpe(seed=None))
    cluster.run(20, folder=tmp_path)

    with pytest.raises(ContractError, match="fixed seed"):
        cluster.run(folder=tmp_path)


def test_a_trial_knows_the_attempts_and_results_that_led_to_its_weights(tmp_path):
    cluster = Cluster("pbt", workers=4, speed=0)
    study = cluster.run(250, folder=tmp_path)
    copied = [trial for trial in study.trials if trial.attempt]

    assert len(copied) >= 3
    for trial in study.trials:
        attempts = study.attempts_of(trial.number)
        results = study.results_of(trial.number)
        assert attempts[0].start is None
        assert all(later.start is not None for later in attempts[1:])
        assert attempts[-1] == trial.attempts[-1]
        assert [result["epoch"] for result in results] == list(range(1, int(trial.time) + 1))
    trial = max(copied, key=lambda trial: len(study.attempts_of(trial.number)))
    *before, _ = study.attempts_of(trial.number)
    start = study.attempts_of(trial.number)[-1].start
    assert before[-1].config == study.trials[start.trial].attempts[start.attempt].config
    assert (
        study.results_of(trial.number)[: int(start.time)]
        == tuple(r for r in study.results_of(start.trial) if r["epoch"] <= start.time)
        or study.trials[start.trial].attempt > start.attempt
    )


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["asha", "pbt", "pbt, synchronous", "hyperband"])
def test_with_only_the_needed_checkpoints_a_study_ends_the_same(scheduler, tmp_path):
    whole = decisions(Cluster(scheduler, workers=4, speed=0).run(folder=tmp_path))
    cluster, removed = Cluster(scheduler, workers=4, speed=1), 0
    study = cluster.run(10, folder=tmp_path)
    while not study.is_finished():
        needed = study.checkpoints_needed()
        removed += len(set(cluster.disk) - needed)
        # What a driver that was killed had not taken in is trained again.
        cluster.disk = {path: loss for path, loss in cluster.disk.items() if path in needed}
        study = cluster.run(7, folder=tmp_path)

    assert decisions(study) == whole
    assert removed > 30


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_the_trial_with_the_reason(value, tmp_path):
    cluster = Cluster("asha", workers=2, speed=0)
    study = cluster.run(0, folder=tmp_path)
    trial = study.running_trials()[0]
    study.receive(
        StudyEvent(trial=trial.number, attempt=0, kind="result", result={"epoch": 1, "loss": value})
    )

    assert (trial.status, trial.reason) == ("ERROR", f"loss is {value} at epoch 1.")


def test_the_trainable_may_say_why_its_loss_is_not_finite(tmp_path):
    study = Cluster("asha", workers=2, speed=0).run(0, folder=tmp_path)
    trial = study.running_trials()[0]
    result = {"epoch": 1, "loss": math.nan, "reason": "The rate is too high."}
    study.receive(StudyEvent(trial=trial.number, result=result))

    assert (trial.status, trial.reason) == ("ERROR", "The rate is too high.")


def test_draws_of_the_program_itself_are_left_alone(tmp_path):
    random.seed(7)
    expected = random.Random(7).random()
    Cluster("pbt", workers=2, speed=0).run(200, folder=tmp_path)

    assert random.random() == expected
