"""One ASHA study, timed beside the same study through ``ray.tune.Tuner``."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import Field

from sluice.base.seeding import deterministic
from sluice.base.settings import Record
from sluice.bench.search.ray_tune_baseline import tune_plainly
from sluice.cluster.settings import ComputeSettings
from sluice.training.loop import train
from sluice.tuning.default_space import default_space
from sluice.tuning.objective import TrainingObjective
from sluice.tuning.parameters import Params
from sluice.tuning.records import Trial
from sluice.tuning.search import run_search
from sluice.tuning.settings import SearchSettings
from sluice.workloads.load import load_workload
from sluice.workloads.prepare_model import prepare_model


class StudySpeed(Record):
    """A study, and the same through Ray's own engine."""

    num_trials: int
    seconds: float = Field(description="Ours, from the start of Ray to its end [s].")
    tuner_seconds: float = Field(description="Through ``Tuner``, likewise [s].")
    ratio: float = Field(description="Ours over Tuner's; below 1 is faster.")
    epochs: int = Field(description="Run by all our trials.")
    best_loss: float = Field(description="Of our best trial.")
    tuner_best_loss: float = Field(description="Of Tuner's best trial, at its last epoch.")


def measure_study(
    objective: TrainingObjective,
    *,
    num_trials: int,
    grace_epochs: int,
    folder: Path,
    clock: Callable[[], float] = time.perf_counter,
) -> StudySpeed:
    """Run an ASHA study on this machine's cores, then its trials again through ``Tuner``.

    Both train the same values on the same rows for at most as many epochs, with the same trainer.
    Ours also proposes the values and writes checkpoints and a journal; Tuner's trials do not.

    Args:
        objective: What is minimised; on one fold. Its base says how long a trial is.
        num_trials: Trials of the study.
        grace_epochs: Epochs before a trial may be stopped.
        folder: For what both write.
        clock: Monotonic time [s].

    Raises:
        SearchFailed: No trial of ours, or not every one of Tuner's, ended with a loss.
    """
    settings = SearchSettings(
        num_trials=num_trials,
        scheduler="asha",
        grace_epochs=grace_epochs,
        seed=objective.seed,
        folds=(objective.folds[0].fold_id,),
    )
    base = objective.base
    started = clock()
    result = run_search(
        objective,
        default_space(base),
        base,
        settings,
        folder=folder / "study",
        hear=_ignore,
        compute=ComputeSettings(),
    )
    seconds = clock() - started
    started = clock()
    losses = tune_plainly(
        _PlainTrial(objective),
        [trial.schedule[0].params for trial in result.trials],
        max_epochs=base.training.max_epochs,
        grace_epochs=grace_epochs,
        reduction=settings.reduction,
        folder=folder / "tuner",
    )
    tuner_seconds = clock() - started
    return StudySpeed(
        num_trials=num_trials,
        seconds=seconds,
        tuner_seconds=tuner_seconds,
        ratio=seconds / tuner_seconds,
        epochs=sum(len(trial.epochs) for trial in result.trials),
        best_loss=result.winner.loss,
        tuner_best_loss=min(losses),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _PlainTrial:
    """One trial as a function of its values: read the rows, train, report."""

    objective: TrainingObjective

    def __call__(self, params: Params, report: Callable[[int, float], None]) -> None:
        own = self.objective
        setup, fold = own.base.with_params(params, where="A plain trial"), own.folds[0]
        workload = load_workload(own.workload, own.workload_settings, where=own.workload)
        frame = own.frame.copy()
        train_rows, val_rows = (workload.examples(frame, part) for part in (fold.train, fold.val))
        model = prepare_model(workload, setup.model, train_rows, seed=own.seed)
        lowest = float("inf")
        with deterministic():
            for result in train(
                model,
                workload.loss,
                workload.losses,
                train_rows,
                val_rows,
                setup.training,
                seed=own.seed,
            ):
                lowest = min(lowest, result.val_loss)
                report(result.epoch, lowest)


def _ignore(_trial: Trial, _trials: tuple[Trial, ...]) -> None:
    pass
