"""Decisions of Ray Tune schedulers do not depend on worker speed or kills of the driver."""

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
    """Simulated workers of different speeds and a disk that survives a kill of the driver.

    The state of a trial is one number that each epoch lowers, depending on the learning rate.
    """

    def __init__(self, scheduler, *, workers, speed, ordered=True, searcher=tpe, num_samples=16):
        self.make = SCHEDULERS[scheduler]
        self.workers, self.rng = workers, random.Random(speed)
        self.ordered, self.searcher, self.num_samples = ordered, searcher, num_samples
        self.disk, self.journal, self.reports = {}, [], 0

    def run(self, reports=math.inf, *, folder):
        """Start or resume the study, run it for a number of reports, and return it."""
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
            self.start_trials(study)
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

    def start_trials(self, study):
        """Suggest and start trials on free workers, as Tune does without an order."""
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
def test_ordered_decisions_do_not_depend_on_number_or_speed_of_workers(scheduler, tmp_path):
    runs = [
        decisions(Cluster(scheduler, workers=workers, speed=speed).run(folder=tmp_path))
        for workers, speed in ((1, 0), (2, 1), (4, 2), (16, 3))
    ]

    assert len(runs[0]) == 16
    assert runs[1:] == runs[:1] * 3


@pytest.mark.parametrize("scheduler", ["asha", "pbt", "pbt, synchronous", "hyperband"])
def test_schedulers_stop_or_copy_trials_in_the_simulation(scheduler, tmp_path):
    study = Cluster(scheduler, workers=4, speed=0).run(folder=tmp_path)

    stopped = sum(trial.time < MAX_EPOCHS for trial in study.trials)
    copied = sum(trial.attempt for trial in study.trials)
    assert (copied if "pbt" in scheduler else stopped) >= 5


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_repeatedly_killed_study_makes_the_same_decisions(scheduler, tmp_path):
    whole = decisions(Cluster(scheduler, workers=4, speed=0).run(folder=tmp_path))
    cluster = Cluster(scheduler, workers=4, speed=1)
    kills = random.Random(5)
    study = cluster.run(kills.randrange(80), folder=tmp_path)
    while not study.is_finished():
        cluster.workers = kills.choice([1, 2, 8])
        study = cluster.run(kills.randrange(120), folder=tmp_path)

    assert decisions(study) == whole


@pytest.mark.parametrize("scheduler", ["asha", "median", "pbt", "hyperband"])
def test_kill_keeps_earlier_decisions_of_an_unordered_study(scheduler, tmp_path):
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


def test_searcher_without_a_seed_is_rejected_when_resuming(tmp_path):
    cluster = Cluster("asha", workers=2, speed=0, searcher=lambda: tpe(seed=None))
    cluster.run(20, folder=tmp_path)

    with pytest.raises(ContractError, match="fixed seed"):
        cluster.run(folder=tmp_path)


def test_attempts_and_results_cover_the_history_of_a_trials_weights(tmp_path):
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
@pytest.mark.parametrize(
    "scheduler",
    [
        pytest.param("asha", marks=pytest.mark.exhaustive),
        "pbt",
        "pbt, synchronous",
        pytest.param("hyperband", marks=pytest.mark.exhaustive),
    ],
)
def test_study_with_only_the_needed_checkpoints_makes_the_same_decisions(scheduler, tmp_path):
    whole = decisions(Cluster(scheduler, workers=4, speed=0).run(folder=tmp_path))
    cluster, removed = Cluster(scheduler, workers=4, speed=1), 0
    study = cluster.run(10, folder=tmp_path)
    while not study.is_finished():
        needed = study.checkpoints_needed()
        removed += len(set(cluster.disk) - needed)
        # Epochs that the killed driver had not processed are trained again.
        cluster.disk = {path: loss for path, loss in cluster.disk.items() if path in needed}
        study = cluster.run(7, folder=tmp_path)

    assert decisions(study) == whole
    assert removed > 30


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_loss_fails_the_trial_with_a_reason(value, tmp_path):
    cluster = Cluster("asha", workers=2, speed=0)
    study = cluster.run(0, folder=tmp_path)
    trial = study.running_trials()[0]
    study.receive(
        StudyEvent(trial=trial.number, attempt=0, kind="result", result={"epoch": 1, "loss": value})
    )

    assert (trial.status, trial.reason) == ("ERROR", f"loss is {value} at epoch 1.")


def test_reason_of_a_non_finite_loss_can_come_from_the_trainable(tmp_path):
    study = Cluster("asha", workers=2, speed=0).run(0, folder=tmp_path)
    trial = study.running_trials()[0]
    result = {"epoch": 1, "loss": math.nan, "reason": "The rate is too high."}
    study.receive(StudyEvent(trial=trial.number, result=result))

    assert (trial.status, trial.reason) == ("ERROR", "The rate is too high.")


def test_study_does_not_advance_the_global_random_generator(tmp_path):
    random.seed(7)
    expected = random.Random(7).random()
    Cluster("pbt", workers=2, speed=0).run(200, folder=tmp_path)

    assert random.random() == expected
