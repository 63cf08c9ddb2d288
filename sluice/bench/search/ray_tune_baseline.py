"""The baseline of the search benchmark: the same study through a plain ``ray.tune.Tuner``.

A trial is a function that reports every epoch, and ASHA stops trials early. Both studies use the
same trainer, so that only the search differs.
"""

import contextlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sluice.base.errors import SearchFailed
from sluice.cluster.ray_session import start_on_loopback

Trial = TypeVar("Trial")
Train = Callable[[Trial, Callable[[int, float], None]], None]
"""Trains one trial: called with (values, report), reports each epoch (from 1) and its loss."""


def run_tuner_baseline(
    train: Train[Trial],
    trials: Sequence[Trial],
    *,
    max_epochs: int,
    grace_epochs: int,
    reduction: int,
    folder: Path,
) -> list[float]:
    """Run trials with given values under ``ray.tune.Tuner``; return the last loss of each.

    Ray is started on this machine and shut down again. All other settings are Ray's defaults: a
    process per trial, and as many trials in parallel as there are cores.

    Args:
        train: Training of one trial; pickled to workers.
        trials: Values of each trial.
        max_epochs: Length of a trial that is not stopped [epochs].
        grace_epochs: Epochs before a trial may be stopped.
        reduction: ASHA's reduction factor.
        folder: Folder of Ray's results.

    Raises:
        SearchFailed: A trial failed; the message names the first.
    """
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    def trial(config: dict[str, Any]) -> None:
        def report(epoch: int, loss: float) -> None:
            tune.report({"loss": loss, "epoch": epoch})

        train(trials[config["trial"]], report)

    start_on_loopback(ray)
    try:
        # Ray prints a table even with verbose=0.
        with contextlib.redirect_stdout(io.StringIO()):
            results = tune.Tuner(
                trial,
                param_space={"trial": tune.grid_search(list(range(len(trials))))},
                tune_config=tune.TuneConfig(
                    metric="loss",
                    mode="min",
                    scheduler=ASHAScheduler(
                        time_attr="epoch",
                        max_t=max_epochs,
                        grace_period=grace_epochs,
                        reduction_factor=reduction,
                    ),
                ),
                run_config=tune.RunConfig(
                    storage_path=str(folder.absolute()), name="plain", verbose=0
                ),
            ).fit()
    finally:
        ray.shutdown()
    if results.errors:
        raise SearchFailed(
            f"{results.num_errors} of {len(trials)} trials of the baseline study failed: "
            f"{results.errors[0]}",
            fix="Correct the error of the first one.",
        )
    return [
        float((result.metrics or {})["loss"])
        for result in (results[at] for at in range(len(results)))
    ]
