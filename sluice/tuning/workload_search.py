"""The search for a workload's best settings, on the rows that may be searched on."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sluice.base.artifacts import ArtifactStore
from sluice.cluster.settings import ComputeSettings
from sluice.data.folds import Fold
from sluice.data.table import TableRecord, load_table
from sluice.training.device import device_on_ray, device_type
from sluice.tuning.default_space import default_space
from sluice.tuning.objective import TrainingObjective, search_folds
from sluice.tuning.records import SearchResult
from sluice.tuning.schedulers import is_population
from sluice.tuning.search import Hear, Run, run_search
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import Setup, Space
from sluice.tuning.tuner import run_tuner


def search_workload(
    workload: str,
    workload_settings: Mapping[str, Any],
    base: Setup,
    space: Space | None,
    settings: SearchSettings,
    *,
    table: TableRecord,
    folds: tuple[Fold, ...],
    artifacts: Path,
    folder: Path,
    hear: Hear,
    compute: ComputeSettings,
    data_seed: int | None = None,
    sys_path: tuple[str, ...] = (),
    callbacks: Sequence[Any] = (),
    note: Callable[[str], None] = lambda _line: None,
    run: Run = run_tuner,
) -> SearchResult:
    """Search for the settings with the lowest validation loss; see ``run_search``.

    Args:
        workload: Import path, 'module:Class'.
        workload_settings: Its settings as plain values.
        base: The settings of all that is not searched.
        space: What is searched; the default space of the architecture when absent.
        settings: The budget, and how it is spent.
        table: The feature frame.
        folds: All folds of the pipeline; ``settings.folds`` picks those that are searched on.
        artifacts: Where the table lies.
        folder: Folder of this search alone.
        hear: Is called after every report.
        compute: Machines and shares of them; they change no decision.
        data_seed: Base seed of the row order; ``settings.seed`` when absent.
        sys_path: Folders that workers need to import the workload.
        callbacks: Callbacks of Ray Tune.
        note: Is told lines for people.
        run: Runs the trials.

    Raises:
        SearchFailed: No trial ended with a finite loss.
        ContractError: A chosen fold holds test rows, or ``folder`` another search.
        SettingsError: A device is asked for that workers do not reserve.
    """
    if is_population(settings.scheduler):
        # A member that is behind goes on from another's weights; patience would freeze it.
        patient = base.training.model_copy(update={"patience_epochs": base.training.max_epochs})
        base = base.model_copy(update={"training": patient})
    objective = TrainingObjective(
        workload=workload,
        workload_settings=dict(workload_settings),
        base=_on_device(base, compute),
        seed=settings.seed,
        folds=search_folds(folds, settings.folds),
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
        hear=hear,
        compute=compute,
        callbacks=callbacks,
        note=note,
        run=run,
    )


def _on_device(base: Setup, compute: ComputeSettings) -> Setup:
    """Return the settings with the device that 'auto' means where trials run."""
    choice = device_on_ray(base.training.device, gpus_per_worker=compute.gpus_per_worker)
    training = base.training.model_copy(update={"device": device_type(choice)})
    return base.model_copy(update={"training": training})
