"""``sluice bench train`` and ``sluice bench tune``: measure training and searches."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.base.cpu_count import count_cores
from sluice.base.settings import Record
from sluice.cli.bench.benchmark_table import (
    Speed,
    collect_measurements,
    speed_at_least,
    speed_at_most,
    speed_table,
)
from sluice.cli.output import results_console

if TYPE_CHECKING:
    from sluice.config.pipeline import PipelineSettings
    from sluice.data.folds import Fold
    from sluice.data.table import TableRecord
    from sluice.workloads.workload import Workload

PIPELINE = "sp500_volatility"

Quick = Annotated[
    bool,
    typer.Option(
        "--quick",
        help="Use fewer repetitions, for a quick check. Do not report these results.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(group: typer.Typer) -> None:
    """Add ``train`` and ``tune`` to ``sluice bench``."""

    @group.command("train", epilog="Example: sluice bench train --quick")
    def train(quick: Quick = False, as_json: AsJson = False) -> None:
        """Measure the speed of training, and compare it with minimal training loops.

        Also measured: the cost of checkpoints, the time to resume, and the speedup by several
        processes.
        """
        _run_benchmark(measure_training(quick=quick), "measuring training", as_json=as_json)

    @group.command("tune", epilog="Example: sluice bench tune --quick")
    def tune(quick: Quick = False, as_json: AsJson = False) -> None:
        """Measure the speed of a search, and compare it with a plain Ray Tune Tuner.

        Also measured: the overhead of the resumable scheduler, and the time to restore 1,000
        simulated trials.
        """
        _run_benchmark(measure_search(quick=quick), "measuring a search", as_json=as_json)


def measure_training(*, quick: bool) -> Iterator[Record | Speed]:
    """Yield records of the measurements, and the speeds that have a target.

    The model of the default pipeline is trained on its real rows. Small models are trained on
    generated tables, tokens and images.
    """
    from sluice.bench.training.fold_run_overhead import measure_fold_runs
    from sluice.bench.training.loader_overhead import measure_loaders
    from sluice.bench.training.trainer_overhead import measure_trainer
    from sluice.training.fold_run_spec import FoldRunSpec

    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder_name:
        folder = Path(folder_name)
        settings, workload, folds, table = _default_pipeline(folder)
        fold = folds[0]
        trainer_speed = measure_trainer(
            workload,
            settings.model,
            settings.training.model_copy(update={"max_epochs": 2} if quick else {}),
            *_train_and_val_examples(workload, table, fold, folder),
            num_rounds=3 if quick else 7,
            seed=0,
            folder=folder,
        )
        yield trainer_speed
        yield speed_at_least(
            "ratio of training speeds: trainer to minimal loop", trainer_speed.ratio, "x", 0.97
        )
        checkpoint_percent = 100 * trainer_speed.checkpoint_share
        yield speed_at_most("checkpoints, part of the training time", checkpoint_percent, "%", 2.0)
        loader_overhead = measure_loaders(
            num_rows=1024 if quick else 4096,
            num_epochs=1 if quick else 4,
            num_rounds=3 if quick else 5,
            worker_counts=(0, 2),
            folder=folder,
        )
        yield loader_overhead
        for loader_speed in loader_overhead.loaders:
            case = f"{loader_speed.source}, {loader_speed.num_workers} workers"
            name = f"ratio of training speeds on {case}: trainer to DataLoader loop"
            yield speed_at_least(name, loader_speed.ratio, "x", 0.97)
        fold_run_speed = measure_fold_runs(
            [
                FoldRunSpec(
                    workload=settings.workload,
                    workload_settings=settings.workload_settings,
                    model=settings.model,
                    training=settings.training.model_copy(
                        update={"max_epochs": 4 if quick else 16}
                    ),
                    seed=seed,
                    fold=fold,
                    table=table,
                    artifacts=folder / "artifacts",
                    runs=folder,
                )
                for seed in settings.seeds[: 1 if quick else None]
                for fold in folds
            ],
            num_workers=count_cores(),
            num_resumes=1 if quick else 5,
            folder=folder,
        )
    yield fold_run_speed
    yield speed_at_most(
        "time to resume, without the start of the process and the import of torch",
        fold_run_speed.resume_seconds,
        "s",
        2.0,
    )
    speedup_name = (
        f"speedup of {fold_run_speed.num_fold_runs} fold runs by "
        f"{fold_run_speed.num_workers} processes"
    )
    yield speed_at_least(speedup_name, fold_run_speed.speedup, "x", 1.8)


def measure_search(*, quick: bool) -> Iterator[Record | Speed]:
    """Yield the speeds that have a target, and a record of all measurements.

    A study on the default pipeline is compared with the same study in a plain ``Tuner``. Resumable
    schedulers are compared with bare Ray Tune schedulers, on trials that only sleep. The cost of
    decisions about many trials is measured on simulated workers.
    """
    from sluice.base.artifacts import ArtifactStore
    from sluice.bench.search.result import SearchSpeed
    from sluice.bench.search.scale import measure_scale
    from sluice.bench.search.study_speed import measure_study
    from sluice.bench.search.wrapper_cost import measure_wrapper
    from sluice.data.table import load_table
    from sluice.tuning.objective import TrainingObjective
    from sluice.tuning.spaces import TrialSettings

    num_trials = 4 if quick else 20
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder_name:
        folder = Path(folder_name)
        settings, _, folds, table = _default_pipeline(folder)
        training = settings.training
        if quick:
            training = training.model_copy(update={"max_epochs": 2})
        study_speed = measure_study(
            TrainingObjective(
                workload=settings.workload,
                workload_settings=settings.workload_settings,
                base=TrialSettings(model=settings.model, training=training),
                seed=0,
                folds=folds[:1],
                table=table,
                frame=load_table(table, ArtifactStore(folder / "artifacts")),
            ),
            num_trials=num_trials,
            grace_epochs=1 if quick else 10,
            folder=folder,
        )
        yield speed_at_most(f"ASHA study, {num_trials} trials", study_speed.seconds, "s", 60.0)
        yield speed_at_most(
            "ratio of times: ASHA study to the same study with ray.tune.Tuner",
            study_speed.ratio,
            "x",
            0.75,
        )
        few_workers_cost = measure_wrapper(
            num_trials=4 if quick else 16,
            num_workers=2,
            cpus_per_worker=count_cores() / 2,
            sleep_s=0.05 if quick else 0.2,
            num_rounds=1 if quick else 3,
            folder=folder / "few",
        )
        yield speed_at_most(
            "ratio of times: resumable scheduler to bare scheduler",
            few_workers_cost.arrival_ratio,
            "x",
            1.02,
        )
        yield speed_at_most(
            "ratio of times: resumable and ordered scheduler to bare scheduler",
            few_workers_cost.ordered_ratio,
            "x",
            1.02,
        )
        many_workers_cost = measure_wrapper(
            num_trials=8 if quick else 100,
            num_workers=2 if quick else 8,
            cpus_per_worker=count_cores() / 8,
            sleep_s=0.05 if quick else 0.2,
            num_rounds=1,
            folder=folder / "many",
        )
        num_simulated = 100 if quick else 1000
        scale_costs = measure_scale(
            num_trials=num_simulated, num_workers=64, folder=folder / "scale"
        )
        restore_s = max(cost.restore_s for cost in scale_costs)
        yield speed_at_most(
            f"time to restore {num_simulated} simulated trials", restore_s, "s", 10.0
        )
        yield SearchSpeed(
            study=study_speed,
            few_workers=few_workers_cost,
            many_workers=many_workers_cost,
            scale=scale_costs,
        )


def _default_pipeline(
    folder: Path,
) -> tuple["PipelineSettings", "Workload", tuple["Fold", ...], "TableRecord"]:
    """Return settings, workload, folds and feature table of the default pipeline.

    The table is stored in ``folder``.
    """
    from sluice.base.artifacts import ArtifactStore
    from sluice.config.pipeline import defs_folder, find_pipeline
    from sluice.config.resolved import resolve
    from sluice.data.table import save_table

    settings = find_pipeline(PIPELINE, defs_folder())
    workload = resolve(settings).workload
    frame = workload.compute_features(workload.load_rows())
    table = save_table(frame, ArtifactStore(folder / "artifacts"))
    return settings, workload, workload.plan_folds(frame), table


def _train_and_val_examples(
    workload: "Workload", table: "TableRecord", fold: "Fold", folder: Path
) -> Any:
    from sluice.base.artifacts import ArtifactStore
    from sluice.data.table import load_table

    frame = load_table(table, ArtifactStore(folder / "artifacts"))
    return workload.examples(frame, fold.train), workload.examples(frame, fold.val)


def _run_benchmark(measurements: Iterator[Record | Speed], activity: str, *, as_json: bool) -> None:
    speeds, records = collect_measurements(measurements, activity)
    if as_json:
        measured = {key: value for record in records for key, value in record.items()}
        rows = [speed.to_json() for speed in speeds]
        print(json.dumps({"speeds": rows, "measured": measured}, indent=1))
    else:
        results_console().print(speed_table(speeds))
