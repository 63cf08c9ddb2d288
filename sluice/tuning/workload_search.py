"""Searches for the best settings of a workload, without using its test rows."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sluice.base.artifacts import ArtifactStore
from sluice.cluster.settings import ComputeSettings
from sluice.data.folds import Fold
from sluice.data.table import TableRecord, load_table
from sluice.training.device import device_on_ray, device_type
from sluice.tuning.default_space import default_space
from sluice.tuning.objective import TrainingObjective, select_search_folds
from sluice.tuning.records import SearchResult
from sluice.tuning.schedulers import is_population_based
from sluice.tuning.search import OnReport, RunTrials, run_search
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import Space, TrialSettings
from sluice.tuning.tuner import run_tuner


def search_workload(
    workload: str,
    workload_settings: Mapping[str, Any],
    base: TrialSettings,
    space: Space | None,
    settings: SearchSettings,
    *,
    table: TableRecord,
    folds: tuple[Fold, ...],
    artifacts: Path,
    folder: Path,
    on_report: OnReport,
    compute: ComputeSettings,
    data_seed: int | None = None,
    sys_path: tuple[str, ...] = (),
    callbacks: Sequence[Any] = (),
    log: Callable[[str], None] = lambda _line: None,
    run: RunTrials = run_tuner,
) -> SearchResult:
    """Search for the settings with the lowest validation loss; see ``run_search``.

    Args:
        workload: Import path of the workload, 'module:Class'.
        workload_settings: Settings of the workload as plain values.
        base: Settings before the values of a trial replace some of them.
        space: The search space; the default space of the architecture if None.
        settings: Number of trials, and how they are suggested and stopped.
        table: Record of the feature frame.
        folds: All folds of the pipeline; ``settings.folds`` selects the folds of the search.
        artifacts: Folder of the artifact store that contains the feature frame.
        folder: Folder of this search only.
        on_report: Called after every event of a trial: a start, a report, an end or a failure.
        compute: Machines and resources. They do not affect the decisions of an ordered search,
            except for the choice between CPU and GPU.
        data_seed: Base seed of the row order; ``settings.seed`` if None.
        sys_path: Folders that workers need to import the workload.
        callbacks: Callbacks of Ray Tune.
        log: Receives messages for the user.
        run: Runs the trials.

    Raises:
        SearchFailed: No trial ended with a finite loss.
        ContractError: A selected fold contains test rows, or ``folder`` contains another search.
        SettingsError: The selected device is not reserved for workers.
    """
    if is_population_based(settings.scheduler):
        # Disable early stopping, because it would end a weak trial of a population. Instead, a weak
        # trial continues with the weights of another trial.
        training = base.training.model_copy(update={"patience_epochs": base.training.max_epochs})
        base = base.model_copy(update={"training": training})
    objective = TrainingObjective(
        workload=workload,
        workload_settings=dict(workload_settings),
        base=_on_device(base, compute),
        seed=settings.seed,
        folds=select_search_folds(folds, settings.folds),
        table=table,
        frame=load_table(table, ArtifactStore(artifacts)),
        data_seed=data_seed,
        sys_path=sys_path,
    )
    return run_search(
        objective,
        space or default_space(base),
        base,
        settings,
        folder=folder,
        on_report=on_report,
        compute=compute,
        callbacks=callbacks,
        log=log,
        run=run,
    )


def _on_device(base: TrialSettings, compute: ComputeSettings) -> TrialSettings:
    """Return the settings with 'auto' resolved to the device on which trials run."""
    choice = device_on_ray(base.training.device, gpus_per_worker=compute.gpus_per_worker)
    training = base.training.model_copy(update={"device": device_type(choice)})
    return base.model_copy(update={"training": training})
