"""The baseline of the search benchmark: the same study through a plain ``ray.tune.Tuner``.

A trial is a function that reports its loss after every epoch, and ASHA stops trials early. Both
studies use the same trainer, so only the search differs.
"""

import contextlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sluice.base.errors import SearchFailed
from sluice.cluster.ray_session import start_on_loopback

Values = TypeVar("Values")
TrainTrial = Callable[[Values, Callable[[int, float], None]], None]
"""Trains one trial. It is called with (values, report), and calls ``report`` with every epoch (from
1) and its loss."""


def run_tuner_baseline(
    train: TrainTrial[Values],
    trial_values: Sequence[Values],
    *,
    max_epochs: int,
    grace_epochs: int,
    reduction_factor: int,
    folder: Path,
) -> list[float]:
    """Run trials with given values under ``ray.tune.Tuner``; return the last loss of each.

    Ray is started on this machine and shut down again. Except for ASHA, its settings are the
    defaults: a process per trial, and as many trials in parallel as there are cores.

    Args:
        train: Training of one trial; pickled to workers.
        trial_values: Values of each trial.
        max_epochs: Length of a trial that is not stopped [epochs].
        grace_epochs: Number of epochs before a trial may be stopped.
        reduction_factor: ASHA's reduction factor.
        folder: Folder of Ray's results.

    Raises:
        SearchFailed: A trial failed. The message contains the first error.
    """
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    def run_trial(config: dict[str, Any]) -> None:
        def report(epoch: int, loss: float) -> None:
            tune.report({"loss": loss, "epoch": epoch})

        train(trial_values[config["trial"]], report)

    start_on_loopback(ray)
    try:
        # Ray prints a table even with verbose=0.
        with contextlib.redirect_stdout(io.StringIO()):
            results = tune.Tuner(
                run_trial,
                param_space={"trial": tune.grid_search(list(range(len(trial_values))))},
                tune_config=tune.TuneConfig(
                    metric="loss",
                    mode="min",
                    scheduler=ASHAScheduler(
                        time_attr="epoch",
                        max_t=max_epochs,
                        grace_period=grace_epochs,
                        reduction_factor=reduction_factor,
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
            f"{results.num_errors} of {len(trial_values)} trials of the baseline study failed: "
            f"{results.errors[0]}",
            fix="Correct this error and run the benchmark again.",
        )
    return [
        float((result.metrics or {})["loss"])
        for result in (results[number] for number in range(len(results)))
    ]
