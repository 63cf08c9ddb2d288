"""``resumable(scheduler)`` and ``resumable(searcher)``, for any program that uses Ray Tune."""

import copy
from pathlib import Path
from typing import Any, overload

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from sluice.errors import SettingsError
from sluice.tuning.resumable.driver import StudyDriver
from sluice.tuning.resumable.journal import StudyJournal
from sluice.tuning.resumable.study import Study

_OPEN: dict[Path, "_Link"] = {}
"""What the scheduler and the searcher of one ``Tuner`` share, by the path of their journal. Tune
copies both, so neither can hold the other."""


class _Link:
    """The study of one run of a ``Tuner``."""

    def __init__(self, scheduler: "ResumableScheduler", num_samples: int) -> None:
        self._scheduler, self._num_samples = scheduler, num_samples
        self._driver: StudyDriver | None = None
        self._journal: StudyJournal | None = None

    def driver(self, searcher: Searcher | None) -> StudyDriver:
        """Return the driver; the first call opens the journal and replays it."""
        if self._driver is None:
            self._journal, self._driver = self._scheduler.open_study(searcher, self._num_samples)
        return self._driver

    def close(self) -> None:
        """Let go of the journal."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None


class ResumableScheduler(TrialScheduler):
    """A scheduler whose decisions survive a kill of the driver. See ``resumable``."""

    _supports_buffered_results = False

    def __init__(
        self,
        scheduler: TrialScheduler,
        journal: Path,
        *,
        time_attr: str,
        ordered: bool,
        concurrency: int,
        seed: int,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inner, self._path = scheduler, journal
        self._time_attr, self._ordered = time_attr, ordered
        self._concurrency, self._seed = concurrency, seed

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Pass metric and mode on, and begin a run."""
        accepted = self._inner.set_search_properties(metric, mode, **spec)
        self._metric = self._inner.metric
        if self._path in _OPEN:
            _OPEN[self._path].close()
        _OPEN[self._path] = _Link(self, spec.get("num_samples", 1))
        return accepted

    def open_study(
        self, searcher: Searcher | None, num_samples: int
    ) -> tuple[StudyJournal, StudyDriver]:
        """Open the journal, replay it into copies of scheduler and searcher, and start."""
        folder = self._path.parent
        subject = {
            "scheduler": _described(self._inner),
            "searcher": _described(searcher),
            "metric": self._metric,
            "time_attr": self._time_attr,
            "num_samples": num_samples,
            "concurrency": self._concurrency,
            "ordered": self._ordered,
            "seed": self._seed,
        }
        journal = StudyJournal(self._path, subject)
        study = Study(
            copy.deepcopy(self._inner),
            copy.deepcopy(searcher),
            metric=str(self._metric),
            time_attr=self._time_attr,
            num_samples=num_samples,
            num_slots=self._concurrency,
            ordered=self._ordered,
            seed=self._seed,
            folder=str(folder),
            record=journal.append,
        )
        try:
            study.replay(journal.restored)
        except BaseException:
            journal.close()
            raise
        return journal, StudyDriver(study, self._time_attr)

    def _driver(self) -> StudyDriver:
        return _OPEN[self._path].driver(None)

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Bind a trial of Tune to its place in the study."""
        del tune_controller
        self._driver().on_add(trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Return the decision of the study."""
        return self._driver().on_result(tune_controller, trial, result)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Report the end of a trial."""
        self._driver().on_end(tune_controller, trial, result)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Report the failure of a trial."""
        self._driver().on_error(tune_controller, trial)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Do nothing: only the study removes trials."""

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Return the trial that should get a worker next."""
        return self._driver().choose(tune_controller)

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
        link = _OPEN.get(self._path)
        if link is None:
            raise SettingsError(
                "A resumable searcher needs a resumable scheduler with the same journal.",
                fix="Pass scheduler=resumable(FIFOScheduler(), journal=...) to TuneConfig.",
            )
        return link.driver(self._inner).suggest(trial_id)

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
    concurrency: int = ...,
    seed: int = ...,
) -> ResumableScheduler: ...


@overload
def resumable(wrapped: Searcher, *, journal: str | Path) -> ResumableSearcher: ...


def resumable(
    wrapped: TrialScheduler | Searcher,
    *,
    journal: str | Path,
    time_attr: str = "training_iteration",
    ordered: bool = False,
    concurrency: int = 8,
    seed: int = 0,
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
        concurrency: Trials under way at a time. It is part of the decisions; workers beyond it are
            idle.
        seed: Seed of the scheduler's random draws, as the perturbations of PBT.

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
    if isinstance(wrapped, TrialScheduler):
        return ResumableScheduler(
            wrapped,
            path,
            time_attr=time_attr,
            ordered=ordered,
            concurrency=concurrency,
            seed=seed,
        )
    return ResumableSearcher(wrapped, path)


def _described(of: object) -> dict[str, Any]:
    """Return the class of a scheduler or searcher and those of its settings that are scalars."""
    if of is None:
        return {}
    scalars = {
        name.lstrip("_"): value
        for name, value in sorted(vars(of).items())
        if isinstance(value, str | int | float | bool)
    }
    return {"class": f"{type(of).__module__}:{type(of).__qualname__}", **scalars}
