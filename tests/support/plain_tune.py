"""A Ray Tune program that uses only ``resumable`` of Sluice; a second run resumes the first."""

import json
import math
import sys
import tempfile
import time
from pathlib import Path

import optuna
import ray
from ray import tune
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)
from ray.tune.schedulers.pb2 import PB2
from ray.tune.search.optuna import OptunaSearch

from sluice.tuning.resumable import TrialFailed, resumable

EPOCHS = 9
SPACE = {"lr": tune.loguniform(1e-4, 1e-1)}
TIME_ATTRIBUTE = {"time_attr": "epoch"}


def tpe():
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=4)
    return OptunaSearch(SPACE, metric="loss", mode="min", sampler=sampler)


def hyperopt():
    from ray.tune.search.hyperopt import HyperOptSearch

    return HyperOptSearch(SPACE, metric="loss", mode="min", n_initial_points=3, random_state_seed=0)


def bohb():
    from ray.tune.search.bohb import TuneBOHB

    return TuneBOHB(SPACE, metric="loss", mode="min", seed=0)


STUDIES = {
    "none": (FIFOScheduler, tpe),
    "asha": (lambda: ASHAScheduler(**TIME_ATTRIBUTE, max_t=EPOCHS, reduction_factor=3), tpe),
    "median": (lambda: MedianStoppingRule(**TIME_ATTRIBUTE, grace_period=3), tpe),
    "hyperband": (lambda: HyperBandScheduler(**TIME_ATTRIBUTE, max_t=EPOCHS), tpe),
    "hyperopt": (
        lambda: ASHAScheduler(**TIME_ATTRIBUTE, max_t=EPOCHS, reduction_factor=3),
        hyperopt,
    ),
    "bohb": (lambda: HyperBandForBOHB(**TIME_ATTRIBUTE, max_t=EPOCHS), bohb),
    "pbt": (
        lambda: PopulationBasedTraining(
            **TIME_ATTRIBUTE, perturbation_interval=3, hyperparam_mutations=SPACE
        ),
        tpe,
    ),
    "pb2": (
        lambda: PB2(
            **TIME_ATTRIBUTE, perturbation_interval=3, hyperparam_bounds={"lr": [1e-4, 1e-1]}
        ),
        tpe,
    ),
}


def train(config):
    loss, start = 3.0, 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            loss, start = json.loads(Path(folder, "state.json").read_text())
    for epoch in range(start + 1, EPOCHS + 1):
        time.sleep(config["seconds"])
        if config["fails_at"] == epoch:
            raise ValueError("This trial cannot be trained.")
        loss -= 0.1 * math.exp(-abs(math.log10(config["lr"]) + 2.5) - epoch / 20)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps([loss, epoch]))
            tune.report(
                {"loss": loss, "epoch": epoch},
                checkpoint=tune.Checkpoint.from_directory(folder),
            )


def main(
    *, study, folder, workers, address, ordered, samples=8, seconds=0.05, wrapped=True, **options
):
    """Run a study on a cluster with two CPUs, and print a JSON list.

    The list contains the numbers of trials and of errors, and the duration [s]. If a failed trial
    ends the study, the list contains the number, the configuration and the error of the trial.
    """
    ray.init(address=address, log_to_driver=False)
    make_scheduler, make_searcher = STUDIES[study]
    scheduler, searcher = make_scheduler(), make_searcher()
    if wrapped:
        journal = Path(folder, "journal.jsonl")
        scheduler = resumable(
            scheduler,
            journal=journal,
            time_attr="epoch",
            ordered=ordered,
            concurrency=4 if ordered else None,
            errors=options.get("errors", "record"),
        )
        searcher = resumable(searcher, journal=journal)
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 2 / workers}),
        param_space={"seconds": seconds, "fails_at": options.get("fails_at", 0)},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=samples,
            reuse_actors=True,
            scheduler=scheduler,
            search_alg=searcher,
        ),
        run_config=tune.RunConfig(name="study", storage_path=folder, verbose=0),
    )
    started = time.perf_counter()
    try:
        results = tuner.fit()
    except TrialFailed as error:
        print(json.dumps([error.number, error.config, repr(error.error.cause)]))
        return
    print(json.dumps([len(results), results.num_errors, time.perf_counter() - started]))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
