"""A plain Ray Tune program with a resumable ASHA; its trials sleep and write where they ran."""

import json
import os
import tempfile
import time
from pathlib import Path

from ray import tune
from ray.tune.schedulers import ASHAScheduler

from sluice.cluster.storage import tune_storage
from sluice.cluster.trial_resources import resources_of
from sluice.tuning.resumable import resumable

EPOCHS = 6
RATES = [0.003, 0.1, 0.01, 0.0003, 0.03, 0.001]


def trainable(pause_s, forbidden):
    """Return a function that Ray pickles by value: workers need no module of this folder."""

    def train(config):
        import ray

        assert not Path.cwd().is_relative_to(forbidden), Path.cwd()
        loss, start = 3.0, 0
        if checkpoint := tune.get_checkpoint():
            with checkpoint.as_directory() as folder:
                loss, start = json.loads(Path(folder, "state.json").read_text())
        for epoch in range(start + 1, EPOCHS + 1):
            time.sleep(pause_s)
            loss -= 0.1 / (1 + abs(config["lr"] - 0.02) * 50) / epoch
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "state.json").write_text(json.dumps([loss, epoch]))
                tune.report(
                    {
                        "loss": loss,
                        "epoch": epoch,
                        "node": ray.get_runtime_context().get_node_id(),
                        "began_at": start,
                        "process": os.getpid(),
                    },
                    checkpoint=tune.Checkpoint.from_directory(folder),
                )

    return train


class OnResult(tune.Callback):
    """Calls back with each result."""

    def __init__(self, hear):
        self._hear = hear

    def on_trial_result(self, iteration, trials, trial, result, **info):
        del iteration, trials, trial, info
        self._hear(result)


def run_study(compute, folder, *, pause_s=0.02, hear=lambda result: None):
    """Run the study on the Ray that is joined; return the results of each trial.

    Returns:
        Of each trial, by its learning rate: its epochs and last loss.
    """
    storage_path, filesystem = tune_storage(compute, folder)
    tuner = tune.Tuner(
        tune.with_resources(trainable(pause_s, str(folder)), resources_of(compute)),
        param_space={"lr": tune.grid_search(RATES)},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            reuse_actors=True,
            scheduler=resumable(
                ASHAScheduler(time_attr="epoch", max_t=EPOCHS, reduction_factor=2),
                journal=folder / "journal.jsonl",
                time_attr="epoch",
                ordered=True,
                concurrency=4,
            ),
        ),
        run_config=tune.RunConfig(
            name=folder.name,
            storage_path=storage_path,
            storage_filesystem=filesystem,
            failure_config=tune.FailureConfig(max_failures=compute.retries),
            callbacks=[OnResult(hear)],
            verbose=0,
        ),
    )
    results = tuner.fit()
    assert results.num_errors == 0, results.errors
    return {
        result.config["lr"]: (result.metrics["epoch"], result.metrics["loss"]) for result in results
    }
