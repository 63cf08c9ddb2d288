"""The adapter to Ray Tune: one ``Tuner`` runs a study."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.base.errors import SettingsError, TrialFailed
from sluice.cluster.autoscaling import wait_for_place
from sluice.cluster.ray_session import dashboard_url, join_ray
from sluice.cluster.settings import ComputeSettings
from sluice.cluster.storage import tune_storage
from sluice.cluster.trial_resources import (
    binding_limit,
    cores_of,
    idle_share,
    resources_of,
)
from sluice.tuning.checkpoint_cleanup import CheckpointCleanup
from sluice.tuning.lanes import is_ordered, most_at_a_time
from sluice.tuning.objective import Objective
from sluice.tuning.records import Strategy
from sluice.tuning.schedulers import make_scheduler, metric_of
from sluice.tuning.searchers import make_searcher
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import Setup, Space
from sluice.tuning.strategy import report_epochs_of
from sluice.tuning.study_folder import RESULTS
from sluice.tuning.trainable import error_of_trial, make_trainable
from sluice.tuning.tune_space import decode

if TYPE_CHECKING:
    from sluice.tuning.resumable.events import Event
    from sluice.tuning.resumable.study import Study

Listener = Callable[["Study", "Event"], None]

_ENVIRONMENT = {
    # Ctrl-C ends the study at once; the journal has all that was reported.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # The table of trials is written by Sluice, to the terminal and to Dagster's log alike.
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    # Paths in a user's workload are relative to where the user started the search.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # The journal is the state; Tune's own copy of it serves readers of its folder only.
    "TUNE_GLOBAL_CHECKPOINT_S": "60",
}

_LOG_LEVELS = {
    "ray.tune": logging.WARNING,  # a line for each copy of PBT
    # Trials of a resumed study that had ended have their files in the folders of the first run.
    "ray.tune.logger": logging.ERROR,
    "ray.tune.analysis": logging.ERROR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """Everything a study is run from."""

    objective: Objective
    space: Space
    base: Setup
    settings: SearchSettings
    strategy: Strategy
    folder: Path
    """Folder of the study on this machine."""

    journal: Path
    compute: ComputeSettings
    callbacks: Sequence[Any] = ()
    """Callbacks of Ray Tune."""

    note: Callable[[str], None] = lambda _line: None
    """Is told a line for people."""

    @property
    def report_epochs(self) -> tuple[int, ...]:
        """Epochs after which a trial reports."""
        return report_epochs_of(self.strategy, self.settings, self.base.training.max_epochs)


def run_tuner(plan: StudyPlan, listener: Listener) -> "Study":
    """Run the trials of a study that have not ended.

    Args:
        plan: The study.
        listener: Is called after every event that took effect.

    Returns:
        The study with all its trials.

    Raises:
        SettingsError: The cluster cannot be reached or is too small, or a scheduler or searcher
            refuses its arguments.
        StorageError: Something cannot be written.
        TrainingFailed: An accident ended a trial more often than ``compute.retries`` allows.
    """
    _require_driver_here(plan.compute)
    with tune_environment(), join_ray(plan.compute, num_cpus=cores_of(plan.compute)) as ray:
        from ray import tune

        from sluice.tuning.resumable import listening, resumable, study_of
        from sluice.tuning.resumable.links import abandon

        wait_for_place(ray, plan.compute, plan.note)
        if link := dashboard_url(ray):
            plan.note(f"Ray's dashboard: {link}")
        most = most_at_a_time(plan.settings, plan.compute)
        if plan.compute.address and (idle := idle_share(ray, plan.compute, most)):
            plan.note(idle)
        storage, filesystem = tune_storage(plan.compute, plan.folder, plan.note)
        metric = metric_of(plan.strategy)
        scheduler = make_scheduler(
            plan.settings, plan.strategy, plan.space, plan.base.training.max_epochs
        )
        searcher = make_searcher(plan.settings, plan.strategy, plan.space, plan.base, metric)
        trainable = make_trainable(plan.objective, plan.space, plan.base, plan.report_epochs)
        tuner = tune.Tuner(
            tune.with_resources(trainable, resources_of(plan.compute)),
            tune_config=tune.TuneConfig(
                metric=metric,
                mode="min",
                num_samples=plan.settings.num_trials,
                reuse_actors=True,
                scheduler=resumable(
                    scheduler,
                    journal=plan.journal,
                    time_attr="epoch",
                    ordered=is_ordered(plan.settings, plan.compute),
                    concurrency=most,
                    seed=plan.settings.seed,
                    errors="stop",
                    workers=binding_limit(ray, plan.compute),
                ),
                search_alg=resumable(searcher, journal=plan.journal),
            ),
            run_config=tune.RunConfig(
                name=RESULTS if plan.compute.storage_path is None else plan.folder.name,
                storage_path=storage,
                storage_filesystem=filesystem,
                failure_config=tune.FailureConfig(max_failures=plan.compute.retries),
                callbacks=list(plan.callbacks),
                verbose=0,
            ),
        )
        try:
            with (
                CheckpointCleanup(filesystem) as cleanup,
                listening(plan.journal, listener),
                listening(plan.journal, cleanup),
                _quiet(),
            ):
                tuner.fit()
        except KeyboardInterrupt:
            abandon(plan.journal)  # a Ray that this process joined goes on
            raise
        except TrialFailed as error:
            params = decode(plan.space, plan.base, error.config)
            raise error_of_trial(error.error or error, params) from error
        return study_of(plan.journal)


def _require_driver_here(compute: ComputeSettings) -> None:
    """Refuse Ray Client, behind which ``Tuner.fit`` runs in a process of the cluster."""
    if compute.address is not None and compute.address.startswith("ray://"):
        raise SettingsError(
            f"A search needs the address of the head node as 'host:port', got '{compute.address}'.",
            cause="Behind 'ray://' Ray Tune runs in a process of the cluster, which has neither "
            "the journal of the study nor whoever reads its reports.",
            fix="Start the search on a machine of the cluster with compute.address 'auto' or "
            "'host:port', for example by 'ray job submit'.",
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out lines of Ray that the search reports itself, or that a resumed one makes untrue."""
    levels = {name: logging.getLogger(name).level for name in _LOG_LEVELS}
    for name, level in _LOG_LEVELS.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


@contextlib.contextmanager
def tune_environment() -> Iterator[None]:
    """Set the variables that Tune reads, and set them back."""
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
