"""Creates the Ray Tune searcher of a search: random values, TPE, or a class by import path."""

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sluice.base.errors import SettingsError
from sluice.base.seeding import derive_seed
from sluice.tuning.records import Strategy
from sluice.tuning.settings import ClassSettings, SearchSettings
from sluice.tuning.spaces import Space, TrialSettings
from sluice.tuning.tune_classes import (
    accepted_arguments,
    build,
    call_library,
    import_class,
    settable_arguments,
)
from sluice.tuning.tune_space import (
    base_params,
    complete_config,
    encode,
    optuna_space,
    tune_space,
)

if TYPE_CHECKING:
    from ray.tune.search import Searcher

_MODE = "min"
"""Value of Ray Tune's argument ``mode``: the metric is minimised."""


def make_searcher(
    settings: SearchSettings, strategy: Strategy, space: Space, base: TrialSettings, metric: str
) -> "Searcher":
    """Return a new searcher with space, metric and mode, so that ``Tuner`` needs no space.

    Trial 0 has the values of ``base``, except values that the space does not contain. A class from
    the settings must accept ``points_to_evaluate`` for this.

    Args:
        settings: Seed, number of random trials before TPE, and optionally the class.
        strategy: Selects random values or TPE.
        space: The searched space.
        base: Settings from which trials start; the values of a trial replace some of them.
        metric: Metric that is minimised.

    Raises:
        SettingsError: The class in ``settings`` does not exist, is not a searcher, refuses its
            arguments or the space, or needs a library that is not installed.

    Cost:
        Imports Ray, 1.4 s.
    """
    seed = derive_seed(settings.seed, "searcher") % 2**32
    if settings.searcher is not None:
        return _make_from_class(settings.searcher, space, base, metric=metric, seed=seed)
    searcher: Searcher = _optuna_search()(
        optuna_space(space, base),
        metric=metric,
        mode=_MODE,
        points_to_evaluate=[encode(space, base_params(space, base))],
        sampler=_sampler(strategy.proposals, seed=seed, startup_trials=settings.startup_trials),
    )
    return searcher


def _sampler(proposals: str, *, seed: int, startup_trials: int) -> Any:
    import optuna

    if proposals == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns about its experimental options
        return optuna.samplers.TPESampler(
            n_startup_trials=startup_trials,
            multivariate=True,
            group=True,
            constant_liar=True,
            seed=seed,
        )


@functools.cache
def _optuna_search() -> Any:
    """Return the searcher class. A definition at module level would import Ray."""
    from ray.tune.search.optuna import OptunaSearch

    class QuietOptunaSearch(OptunaSearch):
        """``OptunaSearch`` that counts a failed trial as the worst trial instead of ignoring it.

        TPE then avoids values with which trials fail. Intermediate results are ignored, because
        samplers do not use them, and because a PBT trial repeats epochs after a copy.
        """

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            with quiet_optuna():
                super().__init__(*args, **kwargs)

        def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
            pass

        def on_trial_complete(
            self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
        ) -> None:
            # OptunaSearch counts a trial without result and without error as pruned before its
            # first step, which TPE ranks last.
            super().on_trial_complete(trial_id, None if error else result, error=False)

    return QuietOptunaSearch


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Suppress Optuna's message about a new study.

    Use this context only for calls that log the message, because a change of the level clears the
    caches of all loggers. When every call was in this context, that took a quarter of the time that
    a study needs for its decisions.
    """
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(verbosity)


def _make_from_class(
    settings: ClassSettings, space: Space, base: TrialSettings, *, metric: str, seed: int
) -> "Searcher":
    """Return a searcher of the class in the settings, with the search space."""
    from ray.tune.search.optuna import OptunaSearch

    cls = import_class(settings.path, what="searcher")
    argument_names, _ = accepted_arguments(cls)
    initial_params = base_params(space, base)
    arguments: dict[str, Any] = {"metric": metric, "mode": _MODE}
    if issubclass(cls, OptunaSearch):
        points = [encode(space, initial_params)]
        arguments |= {"space": optuna_space(space, base), "points_to_evaluate": points}
        optuna_search: Searcher = build(cls, settings, arguments, seed=seed, what="searcher")
        return optuna_search
    domains = tune_space(space, base)
    arguments["points_to_evaluate"] = [complete_config(space, base, initial_params)]
    searcher: Searcher = build(cls, settings, arguments, seed=seed, what="searcher")

    def set_space() -> bool:
        return bool(searcher.set_search_properties(metric, _MODE, domains))

    if call_library(
        set_space, settings.path, what="searcher", settable_names=settable_arguments(cls)
    ):
        return searcher
    if "space" not in argument_names:
        raise SettingsError(
            f"The searcher '{settings.path}' does not accept a search space.",
            cause="set_search_properties returns False, and the constructor has no argument "
            "'space'.",
            fix="Let set_search_properties store the given space and return True.",
        )
    arguments["space"] = domains
    searcher_with_space: Searcher = build(cls, settings, arguments, seed=seed, what="searcher")
    return searcher_with_space
