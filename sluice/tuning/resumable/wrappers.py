"""Makes a scheduler or searcher of Ray Tune resumable, in any program: ``resumable(scheduler)``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, overload

from ray.tune.experiment import Trial
from ray.tune.schedulers import ResourceChangingScheduler, TrialScheduler
from ray.tune.search import Searcher

from sluice.base.errors import SettingsError, SluiceError
from sluice.tuning.resumable import tune_trials, tuner_runs
from sluice.tuning.resumable.driver import TUNE_FIELDS, StudyDriver
from sluice.tuning.resumable.open_study import OpenStudy, StudySettings


class ResumableScheduler(TrialScheduler):
    """A scheduler whose decisions can be repeated after a kill. See ``resumable``."""

    _supports_buffered_results = False

    def __init__(self, scheduler: TrialScheduler, journal: Path, settings: StudySettings) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._wrapped, self._path, self._settings = scheduler, journal, settings

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Pass metric and mode to the wrapped scheduler, and begin a run of the study."""
        accepted = self._wrapped.set_search_properties(metric, mode, **spec)
        self._metric = self._wrapped.metric
        num_samples = spec.get("num_samples", 1)

        def open_study(searcher: Searcher | None) -> OpenStudy:
            return OpenStudy(
                self._path,
                self._settings,
                self._wrapped,
                searcher,
                metric=str(self._metric),
                num_samples=num_samples,
            )

        tuner_runs.begin_run(self._path, open_study)
        return accepted

    @contextmanager
    def _open_driver(self, controller: Any) -> Iterator[StudyDriver]:
        """Yield the driver. A ``SluiceError`` in the context closes the journal and ends fit."""
        run = tuner_runs.latest_run(self._path)
        assert run is not None, "Tune must call set_search_properties before it adds trials"
        run.controller = controller
        try:
            with run.driver(None) as driver:
                yield driver
        except SluiceError:
            run.close()
            tune_trials.raise_original_errors(controller)
            raise

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Bind a trial of Tune to its trial in the study."""
        with self._open_driver(tune_controller) as driver:
            driver.on_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Return the decision of the study about a trial that has reported."""
        with self._open_driver(tune_controller) as driver:
            return driver.on_result(tune_controller, trial, result)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Report the end of a trial to the study."""
        with self._open_driver(tune_controller) as driver:
            driver.on_end(tune_controller, trial, result)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Report the failure of a trial to the study."""
        with self._open_driver(tune_controller) as driver:
            driver.on_error(tune_controller, trial)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Do nothing, because only the study removes trials."""

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Return the trial that should get a worker next."""
        with self._open_driver(tune_controller) as driver:
            return driver.choose(tune_controller)

    def debug_string(self) -> str:
        """Return the status line of the wrapped scheduler."""
        return self._wrapped.debug_string()


class ResumableSearcher(Searcher):
    """A searcher whose suggestions can be repeated after a kill. See ``resumable``."""

    def __init__(self, searcher: Searcher, journal: Path) -> None:
        self._wrapped, self._path = searcher, journal
        super().__init__(metric=searcher.metric, mode=searcher.mode)

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Pass metric, mode and space to the wrapped searcher."""
        accepted = self._wrapped.set_search_properties(metric, mode, config, **spec)
        self._metric, self._mode = self._wrapped.metric, self._wrapped.mode
        return accepted

    def suggest(self, trial_id: str) -> Any:
        """Return the configuration of the next trial of the study."""
        run = tuner_runs.latest_run(self._path)
        if run is None:
            raise SettingsError(
                "A resumable searcher requires a resumable scheduler with the same journal.",
                fix="Pass scheduler=resumable(FIFOScheduler(), journal=...) to TuneConfig.",
            )
        with run.driver(self._wrapped) as driver:
            return driver.suggest(trial_id)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Do nothing, because the study passes results to the wrapped searcher."""

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Do nothing, because the study passes the end of trials to the wrapped searcher."""

    def save(self, checkpoint_path: str) -> None:
        """Write an empty file, because the journal contains the state."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing, because the journal contains the state."""


@overload
def resumable(
    wrapped: TrialScheduler,
    *,
    journal: str | Path,
    time_attr: str,
    ordered: bool = ...,
    concurrency: int | None = ...,
    seed: int = ...,
    errors: Literal["record", "stop"] = ...,
    workers: int | None = ...,
) -> ResumableScheduler: ...


@overload
def resumable(wrapped: Searcher, *, journal: str | Path) -> ResumableSearcher: ...


def resumable(
    wrapped: TrialScheduler | Searcher,
    *,
    journal: str | Path,
    time_attr: str | None = None,
    ordered: bool = False,
    concurrency: int | None = None,
    seed: int = 0,
    errors: Literal["record", "stop"] = "record",
    workers: int | None = None,
) -> ResumableScheduler | ResumableSearcher:
    """Wrap a scheduler or searcher of Ray Tune, so that its decisions survive a kill of the driver.

    Every suggestion and every report is written to the journal before it takes effect. When the
    program runs again with the same journal, the journal is replayed into new objects, and trials
    resume from their last checkpoints. An ordered study then ends with the same trials, early stops
    and copies of weights as an uninterrupted study. An unordered study keeps its earlier decisions,
    but its later decisions depend on the speed of workers.

    Args:
        wrapped: A new scheduler or searcher. A searcher must have a fixed seed.
        journal: Path of the journal, which is created with its folder. It must be the same for the
            scheduler and the searcher.
        time_attr: Name of a reported counter that increases with training and is stored in the
            checkpoint, such as "epoch"; required for a scheduler. Fields that Tune itself adds to a
            result are refused: ``training_iteration`` restarts at 1 after a restore.
        ordered: Whether to pass reports to the scheduler in an order that does not depend on the
            speed of workers. The study then makes the same decisions with any number of workers.
        concurrency: Maximum number of concurrent trials, at least 1. With ``ordered`` it is
            required and affects the decisions. Without ``ordered``, None means as many as the
            cluster has workers, including workers of machines that join later.
        seed: Seed of the scheduler's random numbers, such as the perturbations of PBT.
        errors: What happens when a trial has failed more than ``max_failures`` times: "record"
            records the failure, and the study continues; "stop" records nothing and ends ``fit``
            with ``TrialFailed``, so that the next start retries the trial.
        workers: Maximum number of workers; None means as many as fit on the cluster. It does not
            affect the decisions of an ordered study. ``TuneConfig.max_concurrent_trials`` cannot be
            used instead, because it blocks trials that the study has started.

    Returns:
        The value of ``scheduler`` or ``search_alg`` for ``TuneConfig``.

    Raises:
        SettingsError: ``wrapped`` is not supported, or an argument is missing or invalid.
        ContractError: From ``Tuner.fit``: the journal belongs to another study or has another
            format version, or the replayed decisions differ from the journal.
        StorageError: From ``Tuner.fit``: the journal cannot be written.

    Assumes:
        The trainable is a function that reports a checkpoint with every result, and its results
        depend only on configuration and checkpoint. Schedulers that change resources during a trial
        (``ResourceChangingScheduler``) and decisions by wall-clock time cannot be replayed.

    Cost:
        One ``fdatasync`` for each report.
    """
    path = Path(journal).absolute()
    if isinstance(wrapped, ResumableScheduler | ResumableSearcher):
        raise SettingsError(
            f"resumable requires a scheduler or searcher of Ray Tune, but {type(wrapped).__name__} "
            "is already wrapped.",
            fix="Call resumable once for each scheduler and searcher.",
        )
    if isinstance(wrapped, Searcher):
        return ResumableSearcher(wrapped, path)
    if not isinstance(wrapped, TrialScheduler):
        raise SettingsError(
            f"resumable requires a scheduler or searcher of Ray Tune, got {wrapped!r}.",
            fix="Pass an object such as ASHAScheduler(...) or OptunaSearch(...).",
        )
    if isinstance(wrapped, ResourceChangingScheduler):
        raise SettingsError(
            "ResourceChangingScheduler uses the current resources of the cluster, which differ "
            "after a kill.",
            fix="Wrap its base_scheduler instead.",
        )
    if errors not in ("record", "stop"):
        raise SettingsError(
            f'errors must be "record" or "stop", got {errors!r}.', fix="Pass one of the two values."
        )
    if (ordered and concurrency is None) or (concurrency is not None and concurrency < 1):
        raise SettingsError(
            "concurrency must be at least 1, and is required with ordered=True; got "
            f"concurrency={concurrency}, ordered={ordered}.",
            fix="Pass concurrency=8, for example; the value affects the decisions.",
        )
    if time_attr is None or time_attr in TUNE_FIELDS:
        raise SettingsError(
            f"time_attr must be a counter that the trainable reports, got {time_attr!r}.",
            cause="Fields that Tune adds to a result depend on the machine or the attempt."
            if time_attr in TUNE_FIELDS
            else "",
            fix="Report a counter that the checkpoint contains, and pass its name: 'epoch'.",
        )
    settings = StudySettings(
        time_attr=time_attr,
        ordered=ordered,
        concurrency=concurrency,
        seed=seed,
        errors=errors,
        workers=workers,
    )
    return ResumableScheduler(wrapped, path, settings)
