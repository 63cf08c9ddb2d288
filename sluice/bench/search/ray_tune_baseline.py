"""The same study through Ray's own search engine, as one would write it: what ours is held to.

A function that reports every epoch, ASHA, and nothing else set. It is the trainer of this project
in both, so that only the engines differ.
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
"""(values, report): trains one trial and reports every epoch, counted from 1, and its loss."""


def tune_plainly(
    train: Train[Trial],
    trials: Sequence[Trial],
    *,
    max_epochs: int,
    grace_epochs: int,
    reduction: int,
    folder: Path,
) -> list[float]:
    """Run trials of given values under ``ray.tune.Tuner``; return each one's last loss.

    Ray is started on this machine and ended again. The parts that are not said here are Ray's
    defaults: a process for every trial, as many at a time as there are cores.

    Args:
        train: What a trial does; it is pickled to workers.
        trials: Values of every trial.
        max_epochs: Length of a trial that is not stopped.
        grace_epochs: Epochs before a trial may be stopped.
        reduction: ASHA keeps about one in this many at each rung.
        folder: Where Ray writes its results.

    Raises:
        SearchFailed: A trial failed; the first is named.
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
        # It prints a table also when told to be silent.
        with contextlib.redirect_stdout(io.StringIO()):
            found = tune.Tuner(
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
    if found.errors:
        raise SearchFailed(
            f"{found.num_errors} of {len(trials)} trials of the plain study failed: "
            f"{found.errors[0]}",
            fix="Correct what the first one names.",
        )
    return [
        float((result.metrics or {})["loss"]) for result in (found[at] for at in range(len(found)))
    ]
