"""Adapter to Ray Tune: runs the trials of a study with one ``Tuner``."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.base.errors import SettingsError, TrialFailed
from sluice.cluster.autoscaling import wait_for_slot
from sluice.cluster.ray_session import dashboard_url, join_ray
from sluice.cluster.settings import ComputeSettings
from sluice.cluster.storage import tune_storage
from sluice.cluster.trial_resources import (
    describe_idle_slots,
    local_ray_cores,
    trial_resources,
    worker_limit,
)
from sluice.tuning.checkpoint_cleanup import CheckpointCleanup
from sluice.tuning.concurrency import is_ordered, max_concurrent_trials
from sluice.tuning.objective import Objective
from sluice.tuning.records import Strategy
from sluice.tuning.retry_policy import interrupted_trial_error
from sluice.tuning.schedulers import make_scheduler, metric_of
from sluice.tuning.searchers import make_searcher
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import Space, TrialSettings
from sluice.tuning.strategy import report_epochs
from sluice.tuning.study_folder import RESULTS
from sluice.tuning.trainable import make_trainable, trial_error
from sluice.tuning.tune_space import decode

if TYPE_CHECKING:
    from sluice.tuning.resumable.events import StudyEvent
    from sluice.tuning.resumable.study import Study

Listener = Callable[["Study", "StudyEvent"], None]
"""Function that is called with the study and an event after the event was applied."""

_ENVIRONMENT = {
    # Ctrl-C ends the study immediately. Nothing is lost, because the journal has all reports.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # Sluice prints the table of trials itself, to the terminal and to Dagster's log.
    "RAY_AIR_NEW_OUTPUT": "0",
    # Sluice checks every report itself, and its error messages contain a fix.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    # Paths in a user's workload are relative to the working folder of the search.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # Tune's own snapshot is written once a minute. It is needed only by users who read Tune's
    # folder, because the journal contains the state of the study.
    "TUNE_GLOBAL_CHECKPOINT_S": "60",
}
"""Environment variables of Ray that are set during a search."""

_LOG_LEVELS = {
    "ray.tune": logging.WARNING,  # at INFO, PBT logs a line for each copy
    # When a study is resumed, these loggers warn about missing files of finished trials, although
    # the files are in the folders of the first run.
    "ray.tune.logger": logging.ERROR,
    "ray.tune.analysis": logging.ERROR,
}
"""Levels of Ray's loggers during a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """Everything that is needed to run a study."""

    objective: Objective
    space: Space
    base: TrialSettings
    settings: SearchSettings
    strategy: Strategy
    folder: Path
    """Folder of the study on this machine."""

    journal: Path
    """Path of the journal."""

    compute: ComputeSettings
    callbacks: Sequence[Any] = ()
    """Callbacks of Ray Tune, for example of an experiment tracker."""

    log: Callable[[str], None] = lambda _line: None
    """Function that receives messages for the user."""

    @property
    def report_epochs(self) -> tuple[int, ...]:
        """Epochs after which a trial reports."""
        return report_epochs(self.strategy, self.settings, self.base.training.max_epochs)


def run_tuner(plan: StudyPlan, listener: Listener) -> "Study":
    """Run the trials of a study that have not ended.

    Args:
        plan: The study.
        listener: Called after every event that took effect.

    Returns:
        The study with all its trials.

    Raises:
        SettingsError: The cluster cannot be reached or is too small, or a scheduler or searcher
            refuses its arguments.
        StorageError: A file cannot be written.
        TrainingFailed: A transient error ended a trial more than ``compute.retries`` times. If the
            trial itself raised a ``SluiceError``, this error is raised instead; see
            ``trial_error``.
        IntegrityError: A checkpoint of a trial is missing.
        ContractError: The journal belongs to another study, or the replayed decisions differ from
            the journal.
    """
    _require_local_driver(plan.compute)
    with tune_environment(), join_ray(plan.compute, num_cpus=local_ray_cores(plan.compute)) as ray:
        from ray import tune

        from sluice.tuning.resumable import get_study, listening, resumable
        from sluice.tuning.resumable.tuner_runs import release_workers

        wait_for_slot(ray, plan.compute, plan.log)
        if url := dashboard_url(ray):
            plan.log(f"Ray's dashboard: {url}")
        max_trials = max_concurrent_trials(plan.settings, plan.compute)
        trial_limit = None
        if max_trials is not None:
            is_limited_by_num_trials = max_trials == plan.settings.num_trials
            limiting_setting = (
                "search.num_trials" if is_limited_by_num_trials else "search.concurrent_trials"
            )
            trial_limit = (limiting_setting, max_trials)
        idle_slots_message = (
            describe_idle_slots(ray, plan.compute, trial_limit) if plan.compute.address else ""
        )
        if idle_slots_message:
            plan.log(idle_slots_message)
        storage, filesystem = tune_storage(plan.compute, plan.folder, plan.log)
        metric = metric_of(plan.strategy)
        scheduler = make_scheduler(
            plan.settings, plan.strategy, plan.space, plan.base.training.max_epochs
        )
        searcher = make_searcher(plan.settings, plan.strategy, plan.space, plan.base, metric)
        trainable = make_trainable(plan.objective, plan.space, plan.base, plan.report_epochs)
        tuner = tune.Tuner(
            tune.with_resources(trainable, trial_resources(plan.compute)),
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
                    concurrency=max_trials,
                    seed=plan.settings.seed,
                    errors="stop",
                    workers=worker_limit(ray, plan.compute),
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
                _quiet_ray_logs(),
            ):
                tuner.fit()
        except KeyboardInterrupt:
            # Release the workers, which would otherwise keep their resources while the cluster
            # runs.
            release_workers(plan.journal)
            raise
        except TrialFailed as error:
            params = decode(plan.space, plan.base, error.config)
            raise trial_error(error.error or error, params) from error
        study = get_study(plan.journal)
        if running_trials := study.running_trials():
            raise interrupted_trial_error(
                decode(plan.space, plan.base, running_trials[0].config),
                "Ray Tune ended the search before this trial",
                cause="Ray Tune did not report the reason; its log may contain it.",
            )
        return study


def _require_local_driver(compute: ComputeSettings) -> None:
    """Refuse Ray Client, with which ``Tuner.fit`` runs in a process of the cluster."""
    if compute.address is not None and compute.address.startswith("ray://"):
        raise SettingsError(
            "A search requires the address of the head node as 'host:port', got "
            f"'{compute.address}'.",
            cause="With 'ray://' Ray Tune runs in a process of the cluster, which has neither the "
            "journal of the study nor the terminal for its reports.",
            fix="Start the search on a machine of the cluster with compute.address 'auto' or "
            "'host:port', for example by 'ray job submit'.",
        )


@contextlib.contextmanager
def _quiet_ray_logs() -> Iterator[None]:
    """Suppress Ray's log messages that repeat messages of the search or are wrong on a resume."""
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
    """Set the environment variables of Tune, and restore them afterwards."""
    previous_values = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in previous_values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
