"""``resumable(scheduler)`` and ``resumable(searcher)``, for any program that uses Ray Tune."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, overload

from ray.tune.experiment import Trial
from ray.tune.schedulers import ResourceChangingScheduler, TrialScheduler
from ray.tune.search import Searcher

from sluice.base.errors import SettingsError, SluiceError
from sluice.tuning.resumable import links, tune_trials
from sluice.tuning.resumable.driver import StudyDriver
from sluice.tuning.resumable.opening import OpenStudy, StudySettings


class ResumableScheduler(TrialScheduler):
    """A scheduler whose decisions survive a kill of the driver. See ``resumable``."""

    _supports_buffered_results = False

    def __init__(self, scheduler: TrialScheduler, journal: Path, settings: StudySettings) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inner, self._path, self._settings = scheduler, journal, settings

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Pass metric and mode on, and begin a run."""
        accepted = self._inner.set_search_properties(metric, mode, **spec)
        self._metric = self._inner.metric
        num_samples = spec.get("num_samples", 1)

        def open_study(searcher: Searcher | None) -> OpenStudy:
            return OpenStudy(
                self._path,
                self._settings,
                self._inner,
                searcher,
                metric=str(self._metric),
                num_samples=num_samples,
            )

        links.begin(self._path, open_study)
        return accepted

    @contextmanager
    def _deciding(self, controller: Any) -> Iterator[StudyDriver]:
        link = links.link_of(self._path)
        assert link is not None, "Tune names the metric before it adds trials"
        link.controller = controller
        try:
            with link.decide(None) as driver:
                yield driver
        except SluiceError:
            link.close()
            tune_trials.raise_as_is(controller)
            raise

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Bind a trial of Tune to its place in the study."""
        with self._deciding(tune_controller) as driver:
            driver.on_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Return the decision of the study."""
        with self._deciding(tune_controller) as driver:
            return driver.on_result(tune_controller, trial, result)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Report the end of a trial."""
        with self._deciding(tune_controller) as driver:
            driver.on_end(tune_controller, trial, result)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Report the failure of a trial."""
        with self._deciding(tune_controller) as driver:
            driver.on_error(tune_controller, trial)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Do nothing: only the study removes trials."""

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Return the trial that should get a worker next."""
        with self._deciding(tune_controller) as driver:
            return driver.choose(tune_controller)

    def debug_string(self) -> str:
        """Return the wrapped scheduler's own line."""
        return self._inner.debug_string()


class ResumableSearcher(Searcher):
    """A searcher whose suggestions survive a kill of the driver. See ``resumable``."""

    def __init__(self, searcher: Searcher, journal: Path) -> None:
        self._inner, self._path = searcher, journal
        super().__init__(metric=searcher.metric, mode=searcher.mode)

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Pass metric, mode and space on."""
        accepted = self._inner.set_search_properties(metric, mode, config, **spec)
        self._metric, self._mode = self._inner.metric, self._inner.mode
        return accepted

    def suggest(self, trial_id: str) -> Any:
        """Return the configuration of the next trial of the study."""
        link = links.link_of(self._path)
        if link is None:
            raise SettingsError(
                "A resumable searcher needs a resumable scheduler with the same journal.",
                fix="Pass scheduler=resumable(FIFOScheduler(), journal=...) to TuneConfig.",
            )
        with link.decide(self._inner) as driver:
            return driver.suggest(trial_id)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Do nothing: the study reports results, in its order."""

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Do nothing: the study reports ends, in its order."""

    def save(self, checkpoint_path: str) -> None:
        """Write an empty file: the journal is the state."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing: the journal is the state."""


@overload
def resumable(
    wrapped: TrialScheduler,
    *,
    journal: str | Path,
    time_attr: str = ...,
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
    time_attr: str = "training_iteration",
    ordered: bool = False,
    concurrency: int | None = None,
    seed: int = 0,
    errors: Literal["record", "stop"] = "record",
    workers: int | None = None,
) -> ResumableScheduler | ResumableSearcher:
    """Return a scheduler or searcher of Ray Tune whose decisions survive a kill of the driver.

    Every suggestion and every report is written to the journal before it takes effect. When the
    program is run again with the same journal, the journal is replayed into fresh objects, and
    trials go on from their last checkpoints: the study ends with the same trials, stops and copies.

    Args:
        wrapped: A scheduler or a searcher that has not been used. The searcher needs a fixed seed.
        journal: File of the journal, the same for both; created with its folder.
        time_attr: Name of a reported counter that grows with training and is stored in the
            checkpoint, as "epoch". Tune's own ``training_iteration`` starts at 1 again after a
            restore.
        ordered: Give reports to the scheduler in an order that does not depend on the speed of
            workers: the same study takes the same decisions on any number of them.
        concurrency: Trials under way at a time, from 1. With ``ordered`` it is required and part of
            the decisions. Without, None means as many as the cluster has workers for, also those
            that join later.
        seed: Seed of the scheduler's random draws, as the perturbations of PBT.
        errors: Where Tune gives a trial up after ``max_failures``: "record" writes down that it
            failed, and the study goes on; "stop" writes nothing and ends ``fit`` with
            ``TrialFailed``, so that the next start tries the trial anew.
        workers: Workers at a time; None means as many as the cluster has room for. It is no part
            of the decisions of an ordered study. ``TuneConfig.max_concurrent_trials`` cannot be
            used instead: it holds back trials that the study has begun.

    Returns:
        What ``TuneConfig`` takes as ``scheduler`` or ``search_alg``.

    Raises:
        ContractError: From ``Tuner.fit``: the journal belongs to another study or to another
            version of its format, or the searcher suggests something else than it did.
        StorageError: From ``Tuner.fit``: the journal cannot be written.

    Assumes:
        The trainable is a function that reports a checkpoint with every result, and its results
        follow from configuration and checkpoint. Schedulers that change resources in mid-trial
        (``ResourceChangingScheduler``) and decisions by wall-clock time cannot be replayed.

    Cost:
        One ``fdatasync`` for each report.
    """
    path = Path(journal).absolute()
    if isinstance(wrapped, ResumableScheduler | ResumableSearcher):
        raise SettingsError(
            f"A scheduler or searcher of Ray Tune is required, {type(wrapped).__name__} is wrapped "
            "already.",
            fix="Call resumable once for each.",
        )
    if isinstance(wrapped, Searcher):
        return ResumableSearcher(wrapped, path)
    if not isinstance(wrapped, TrialScheduler):
        raise SettingsError(
            f"A scheduler or searcher of Ray Tune is required, not {wrapped!r}.",
            fix="Pass an object such as ASHAScheduler(...) or OptunaSearch(...).",
        )
    if isinstance(wrapped, ResourceChangingScheduler):
        raise SettingsError(
            "ResourceChangingScheduler asks for the resources of the cluster at the moment, which "
            "are others after a kill.",
            fix="Wrap the scheduler that it is given as base_scheduler.",
        )
    if errors not in ("record", "stop"):
        raise SettingsError(
            f'errors is "record" or "stop", not {errors!r}.', fix="Pass one of the two."
        )
    if (ordered and concurrency is None) or (concurrency is not None and concurrency < 1):
        raise SettingsError(
            f"A number of trials at a time from 1 is required with ordered={ordered}, concurrency "
            f"is {concurrency}.",
            fix="Pass concurrency=8, for example; it is part of the decisions.",
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
