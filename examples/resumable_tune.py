"""A Ray Tune study that continues after a crash.

python examples/resumable_tune.py FOLDER [ADDRESS_OF_A_RAY_CLUSTER]

Run this command, kill the process, and run the command again: the second run continues the study
that is stored in FOLDER.
"""

import json
import sys
import tempfile
from pathlib import Path

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

from sluice.tuning.resumable import resumable


def train(config):
    """Simulate a training whose loss falls faster with a higher learning rate."""
    loss, last_epoch = 3.0, 0
    if checkpoint := tune.get_checkpoint():
        loss, last_epoch = json.loads(Path(checkpoint.to_directory(), "state.json").read_text())
    for epoch in range(last_epoch + 1, 10):
        loss *= 1 - config["lr"]
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps([loss, epoch]))
            tune.report({"loss": loss, "epoch": epoch}, checkpoint=tune.Checkpoint(folder))


if __name__ == "__main__":
    folder = Path(sys.argv[1]).absolute()
    ray.init(address=sys.argv[2] if len(sys.argv) > 2 else "local")
    asha = ASHAScheduler(time_attr="epoch", max_t=9, reduction_factor=3)
    tpe = OptunaSearch({"lr": tune.loguniform(1e-4, 1e-1)}, metric="loss", mode="min", seed=0)
    # The scheduler and the searcher record their decisions in the same journal.
    tune_config = tune.TuneConfig(
        metric="loss",
        mode="min",
        num_samples=12,
        reuse_actors=True,
        scheduler=resumable(
            asha, journal=folder / "journal.jsonl", time_attr="epoch", ordered=True, concurrency=4
        ),
        search_alg=resumable(tpe, journal=folder / "journal.jsonl"),
    )
    run_config = tune.RunConfig(name="study", storage_path=str(folder))
    results = tune.Tuner(train, tune_config=tune_config, run_config=run_config).fit()
    print(results.get_best_result().config)
