"""Measures the duration of an ASHA study, and of the same study with a plain ``ray.tune.Tuner``."""

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
    """Measurements of a study, and of the same study with plain Ray Tune (the baseline)."""

    num_trials: int
    seconds: float = Field(
        description="Duration of the study, including start and stop of Ray [s]."
    )
    tuner_seconds: float = Field(description="Duration of the baseline study [s].")
    ratio: float = Field(
        description="Duration of the study divided by the duration of the baseline; below 1 if the "
        "study is faster."
    )
    num_epochs: int = Field(description="Number of trained epochs of all trials of the study.")
    best_loss: float = Field(description="Loss of the best trial of the study.")
    tuner_best_loss: float = Field(description="Loss of the best trial of the baseline.")


def measure_study(
    objective: TrainingObjective,
    *,
    num_trials: int,
    grace_epochs: int,
    folder: Path,
    clock: Callable[[], float] = time.perf_counter,
) -> StudySpeed:
    """Run an ASHA study on this machine's cores, then its trials again with a plain ``Tuner``.

    The trials of both have the same values, rows and maximum number of epochs, and use the same
    trainer. Only the study proposes the values, and writes checkpoints and a journal.

    Args:
        objective: Objective on one fold. Its base settings define the maximum length of a trial.
        num_trials: Number of trials.
        grace_epochs: Number of epochs before a trial may be stopped.
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
    start_s = clock()
    result = run_search(
        objective,
        default_space(base),
        base,
        settings,
        folder=folder / "study",
        on_report=_ignore_report,
        compute=ComputeSettings(),
    )
    seconds = clock() - start_s
    start_s = clock()
    baseline_losses = run_tuner_baseline(
        _BaselineTrial(objective),
        [trial.schedule[0].params for trial in result.trials],
        max_epochs=base.training.max_epochs,
        grace_epochs=grace_epochs,
        reduction_factor=settings.reduction,
        folder=folder / "tuner",
    )
    tuner_seconds = clock() - start_s
    return StudySpeed(
        num_trials=num_trials,
        seconds=seconds,
        tuner_seconds=tuner_seconds,
        ratio=seconds / tuner_seconds,
        num_epochs=sum(len(trial.epochs) for trial in result.trials),
        best_loss=result.winner.loss,
        tuner_best_loss=min(baseline_losses),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _BaselineTrial:
    """Trains a trial of the baseline, and reports its lowest validation loss after every epoch."""

    objective: TrainingObjective

    def __call__(self, params: Params, report: Callable[[int, float], None]) -> None:
        objective = self.objective
        trial_settings, fold = (
            objective.base.with_params(params, where="A trial of the baseline"),
            objective.folds[0],
        )
        workload = load_workload(
            objective.workload, objective.workload_settings, where=objective.workload
        )
        frame = objective.frame.copy()
        train_examples, val_examples = (
            workload.examples(frame, part) for part in (fold.train, fold.val)
        )
        model = prepare_model(workload, trial_settings.model, train_examples, seed=objective.seed)
        lowest_loss = float("inf")
        with deterministic():
            for result in train(
                model,
                workload.loss,
                workload.losses,
                train_examples,
                val_examples,
                trial_settings.training,
                seed=objective.seed,
            ):
                lowest_loss = min(lowest_loss, result.val_loss)
                report(result.epoch, lowest_loss)


def _ignore_report(_trial: TrialRecord, _trials: tuple[TrialRecord, ...]) -> None:
    pass
