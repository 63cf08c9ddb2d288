"""Times an ASHA study, and the same study through a plain ``ray.tune.Tuner``."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import Field

from sluice.base.seeding import deterministic
from sluice.base.settings import Record
from sluice.bench.search.ray_tune_baseline import run_tuner_baseline
from sluice.cluster.settings import ComputeSettings
from sluice.training.loop import train
from sluice.tuning.default_space import default_space
from sluice.tuning.objective import TrainingObjective
from sluice.tuning.parameters import Params
from sluice.tuning.records import TrialRecord
from sluice.tuning.search import run_search
from sluice.tuning.settings import SearchSettings
from sluice.workloads.load import load_workload
from sluice.workloads.prepare_model import prepare_model


class StudySpeed(Record):
    """Measurements of a study, and of the same study through plain Ray Tune."""

    num_trials: int
    seconds: float = Field(
        description="Duration of the study, including start and stop of Ray [s]."
    )
    tuner_seconds: float = Field(description="Duration of the baseline study [s].")
    ratio: float = Field(description="Duration over that of the baseline; below 1 is faster.")
    epochs: int = Field(description="Epochs of all trials.")
    best_loss: float = Field(description="Loss of the best trial.")
    tuner_best_loss: float = Field(description="Lowest loss of the baseline's best trial.")


def measure_study(
    objective: TrainingObjective,
    *,
    num_trials: int,
    grace_epochs: int,
    folder: Path,
    clock: Callable[[], float] = time.perf_counter,
) -> StudySpeed:
    """Run an ASHA study on this machine's cores, then its trials again through plain ``Tuner``.

    Both train trials with the same values on the same rows, with the same trainer and the same
    maximum of epochs. The study also proposes the values and writes checkpoints and a journal; the
    baseline does not.

    Args:
        objective: Objective on one fold; its base settings define the length of a trial.
        num_trials: Trials of the study.
        grace_epochs: Epochs before a trial may be stopped.
        folder: Folder of the results.
        clock: Monotonic time [s].

    Raises:
        SearchFailed: Every trial of the study failed, or at least one trial of the baseline.
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
        on_report=_ignore,
        compute=ComputeSettings(),
    )
    seconds = clock() - started
    started = clock()
    losses = run_tuner_baseline(
        _BaselineTrial(objective),
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
class _BaselineTrial:
    """A trial of the baseline: reads the rows, trains, reports."""

    objective: TrainingObjective

    def __call__(self, params: Params, report: Callable[[int, float], None]) -> None:
        objective = self.objective
        setup, fold = (
            objective.base.with_params(params, where="A trial of the baseline"),
            objective.folds[0],
        )
        workload = load_workload(
            objective.workload, objective.workload_settings, where=objective.workload
        )
        frame = objective.frame.copy()
        train_rows, val_rows = (workload.examples(frame, part) for part in (fold.train, fold.val))
        model = prepare_model(workload, setup.model, train_rows, seed=objective.seed)
        lowest = float("inf")
        with deterministic():
            for result in train(
                model,
                workload.loss,
                workload.losses,
                train_rows,
                val_rows,
                setup.training,
                seed=objective.seed,
            ):
                lowest = min(lowest, result.val_loss)
                report(result.epoch, lowest)


def _ignore(_trial: TrialRecord, _trials: tuple[TrialRecord, ...]) -> None:
    pass
