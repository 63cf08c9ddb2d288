"""A program that uses Ray Tune and nothing of Sluice but ``resumable``; run again, it goes on."""

import json
import math
import sys
import tempfile
import time
from pathlib import Path

import optuna
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining
from ray.tune.search.optuna import OptunaSearch

from sluice.tuning.resumable import resumable

EPOCHS = 9
MUTATIONS = {"lr": tune.loguniform(1e-4, 1e-1)}
SCHEDULERS = {
    "asha": lambda: ASHAScheduler(time_attr="epoch", max_t=EPOCHS, reduction_factor=3),
    "pbt": lambda: PopulationBasedTraining(
        time_attr="epoch", perturbation_interval=3, hyperparam_mutations=MUTATIONS
    ),
}


def train(config):
    loss, start = 3.0, 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            loss, start = json.loads(Path(folder, "state.json").read_text())
    for epoch in range(start + 1, EPOCHS + 1):
        time.sleep(0.05)
        loss -= 0.1 * math.exp(-abs(math.log10(config["lr"]) + 2.5) - epoch / 20)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps([loss, epoch]))
            tune.report(
                {"loss": loss, "epoch": epoch},
                checkpoint=tune.Checkpoint.from_directory(folder),
            )


def main(scheduler, folder, workers, ordered):
    ray.init(address="local", num_cpus=workers, include_dashboard=False, log_to_driver=False)
    journal = Path(folder, "journal.jsonl")
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=4)
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=8,
            reuse_actors=True,
            scheduler=resumable(
                SCHEDULERS[scheduler](),
                journal=journal,
                time_attr="epoch",
                ordered=ordered,
                concurrency=4 if ordered else None,
            ),
            search_alg=resumable(
                OptunaSearch(MUTATIONS, metric="loss", mode="min", sampler=sampler),
                journal=journal,
            ),
        ),
        run_config=tune.RunConfig(name="study", storage_path=folder, verbose=0),
    )
    results = tuner.fit()
    print(json.dumps([len(results), results.num_errors]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "ordered")
