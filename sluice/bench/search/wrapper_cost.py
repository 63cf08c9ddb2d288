"""Overhead of ``resumable``, which makes a scheduler or searcher of Ray Tune resumable.

Studies with ``resumable`` are compared with studies under the bare scheduler. Their trials only
sleep, in real worker processes. All variants do the same work: the loss of a trial depends only on
its value, so ASHA stops bad trials at their first rung, in whatever order reports arrive.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from sluice.base.errors import ContractError
from sluice.base.settings import Record
from sluice.cluster.ray_session import join_ray
from sluice.cluster.settings import ComputeSettings
from sluice.tuning.searchers import quiet_optuna
from sluice.tuning.tuner import tune_environment

Variant = Literal["bare", "arrival", "ordered"]
"""The bare scheduler, or ``resumable`` with results applied by arrival or in a fixed order."""

_VARIANTS: tuple[Variant, ...] = ("bare", "arrival", "ordered")
_EPOCHS, _REDUCTION, _SEED = 9, 3, 0
_GOOD_X_LIMIT = 0.5
"""A trial is good, with the loss 1, if its value 'x' is below this limit. Else its loss is 2."""

_FIRST_VALUES = ({"x": 0.1}, {"x": 0.2}, {"x": 0.3})
"""Values of the first trials. All are good, so that bad trials never define the cutoff of ASHA."""


class WrapperCost(Record):
    """Times of the same study under a bare scheduler and under ``resumable``."""

    num_trials: int = Field(
        description="Number of trials per study; about half of them are stopped early."
    )
    num_results: int = Field(description="Number of results per study, each with a checkpoint.")
    num_workers: int = Field(description="Number of worker processes.")
    sleep_s: float = Field(description="Sleep of a trial between two reports [s].")
    num_rounds: int = Field(description="Number of runs per variant.")
    bare_s: float = Field(
        description="Time from the first to the last result with the bare scheduler, median over "
        "the rounds [s]."
    )
    arrival_ratio: float = Field(
        description="Time with ``resumable`` and results applied by arrival, divided by the time "
        "with the bare scheduler; median over the rounds."
    )
    arrival_range: tuple[float, float] = Field(
        description="Minimum and maximum of the ratio whose median is ``arrival_ratio``."
    )
    ordered_ratio: float = Field(
        description="Time with ``resumable`` and results applied in a fixed order, divided by the "
        "time with the bare scheduler; median over the rounds."
    )
    ordered_range: tuple[float, float] = Field(
        description="Minimum and maximum of the ratio whose median is ``ordered_ratio``."
    )
    bare_cpu_ms: float = Field(
        description="CPU time of this process per result with the bare scheduler [ms]."
    )
    arrival_cpu_ms: float = Field(
        description="CPU time of this process per result with ``resumable`` and results applied by "
        "arrival [ms]."
    )
    ordered_cpu_ms: float = Field(
        description="CPU time of this process per result with ``resumable`` and results applied in "
        "a fixed order [ms]."
    )


def measure_wrapper(
    *,
    num_trials: int,
    num_workers: int,
    cpus_per_worker: float,
    sleep_s: float,
    num_rounds: int,
    folder: Path,
) -> WrapperCost:
    """Run a study of sleeping trials under all variants, in turns.

    Args:
        num_trials: Number of trials of a study.
        num_workers: Number of workers.
        cpus_per_worker: CPUs that a worker reserves.
        sleep_s: Sleep of a trial between two reports [s].
        num_rounds: Number of runs per variant.
        folder: Folder of results, checkpoints and journals.

    Raises:
        ContractError: The variants reported different numbers of results.
        SettingsError: Ray cannot start.
    """
    wall_times_s: dict[Variant, list[float]] = {variant: [] for variant in _VARIANTS}
    cpu_ms: dict[Variant, list[float]] = {variant: [] for variant in _VARIANTS}
    result_counts: set[int] = set()
    with tune_environment(), join_ray(ComputeSettings()):
        for round_number in range(num_rounds):
            # The first run of a round may be slower, so each variant is first in turn.
            first_index = round_number % len(_VARIANTS)
            for variant in (*_VARIANTS[first_index:], *_VARIANTS[:first_index]):
                num_results, wall_s, cpu_s = _run_study(
                    variant,
                    num_trials=num_trials,
                    num_workers=num_workers,
                    cpus_per_worker=cpus_per_worker,
                    sleep_s=sleep_s,
                    folder=folder / f"{variant}-{round_number}",
                )
                result_counts.add(num_results)
                wall_times_s[variant].append(wall_s)
                cpu_ms[variant].append(1000 * cpu_s / num_results)
    if len(result_counts) > 1:
        raise ContractError(
            f"All variants must have the same number of results, got {sorted(result_counts)}.",
            cause="A trial failed, or was stopped for another reason than its value.",
            fix=f"Inspect the results of trials in {folder}, and run again.",
        )
    arrival_ratios, ordered_ratios = (
        [
            wall_s / bare_s
            for wall_s, bare_s in zip(wall_times_s[variant], wall_times_s["bare"], strict=True)
        ]
        for variant in _VARIANTS[1:]
    )
    return WrapperCost(
        num_trials=num_trials,
        num_results=result_counts.pop(),
        num_workers=num_workers,
        sleep_s=sleep_s,
        num_rounds=num_rounds,
        bare_s=statistics.median(wall_times_s["bare"]),
        arrival_ratio=statistics.median(arrival_ratios),
        arrival_range=(min(arrival_ratios), max(arrival_ratios)),
        ordered_ratio=statistics.median(ordered_ratios),
        ordered_range=(min(ordered_ratios), max(ordered_ratios)),
        bare_cpu_ms=statistics.median(cpu_ms["bare"]),
        arrival_cpu_ms=statistics.median(cpu_ms["arrival"]),
        ordered_cpu_ms=statistics.median(cpu_ms["ordered"]),
    )


def _run_study(
    variant: Variant,
    *,
    num_trials: int,
    num_workers: int,
    cpus_per_worker: float,
    sleep_s: float,
    folder: Path,
) -> tuple[int, float, float]:
    """Run a study; return the number of results, and the time from the first to the last.

    The time is returned as wall time and as CPU time [s].
    """
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    from sluice.tuning.resumable import resumable

    scheduler: Any = ASHAScheduler(
        time_attr="epoch", max_t=_EPOCHS, grace_period=1, reduction_factor=_REDUCTION
    )
    searcher: Any = _make_searcher()
    if variant != "bare":
        journal = folder / "journal.jsonl"
        scheduler = resumable(
            scheduler,
            journal=journal,
            time_attr="epoch",
            ordered=variant == "ordered",
            concurrency=num_workers,
        )
        searcher = resumable(searcher, journal=journal)
    stopwatch = _make_stopwatch()
    tune.Tuner(
        tune.with_resources(
            tune.with_parameters(sleeping_trial, sleep_s=sleep_s, epochs=_EPOCHS),
            {"cpu": cpus_per_worker},
        ),
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=num_trials,
            max_concurrent_trials=num_workers if variant == "bare" else None,
            reuse_actors=True,
            scheduler=scheduler,
            search_alg=searcher,
        ),
        run_config=tune.RunConfig(
            name="tune", storage_path=str(folder), callbacks=[stopwatch], verbose=0
        ),
    ).fit()
    (start_s, start_cpu_s), (end_s, end_cpu_s) = (
        stopwatch.result_times[0],
        stopwatch.result_times[-1],
    )
    return len(stopwatch.result_times), end_s - start_s, end_cpu_s - start_cpu_s


def _make_searcher() -> Any:
    """Return a random searcher that suggests the same values in every study."""
    import optuna
    from ray import tune
    from ray.tune.search.optuna import OptunaSearch

    with quiet_optuna():
        return OptunaSearch(
            {"x": tune.uniform(0, 1)},
            metric="loss",
            mode="min",
            points_to_evaluate=[dict(point) for point in _FIRST_VALUES],
            sampler=optuna.samplers.RandomSampler(seed=_SEED),
        )


def _make_stopwatch() -> Any:
    """Return a Tune callback that records wall clock and CPU time at each result [s]."""
    from ray.tune import Callback

    class Stopwatch(Callback):
        def __init__(self) -> None:
            self.result_times: list[tuple[float, float]] = []

        def on_trial_result(self, *_arguments: Any, **_info: Any) -> None:
            self.result_times.append((time.perf_counter(), time.process_time()))

    return Stopwatch()


def sleeping_trial(config: dict[str, Any], *, sleep_s: float, epochs: int) -> None:
    """Sleep, then report a loss with a checkpoint, in every epoch.

    The loss depends only on the trial's value.

    Args:
        config: Contains ``x``, the value of the trial, from 0 to 1.
        sleep_s: Sleep before each report [s].
        epochs: Number of reports of a trial that is not stopped.
    """
    from ray import tune

    last_epoch = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as name:
            last_epoch = json.loads(Path(name, "epoch.json").read_text())
    loss = 1.0 if config["x"] < _GOOD_X_LIMIT else 2.0
    for epoch in range(last_epoch + 1, epochs + 1):
        time.sleep(sleep_s)
        with tempfile.TemporaryDirectory(prefix="sluice-trial-") as name:
            Path(name, "epoch.json").write_text(json.dumps(epoch))
            tune.report(
                {"epoch": epoch, "loss": loss},
                checkpoint=tune.Checkpoint.from_directory(name),
            )
