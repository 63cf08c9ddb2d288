"""The searcher of Ray Tune for a search: random values, TPE, or a class by import path."""

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sluice.base.errors import SettingsError
from sluice.base.seeding import derive_seed
from sluice.tuning.records import Strategy
from sluice.tuning.settings import ClassSettings, SearchSettings
from sluice.tuning.spaces import Setup, Space
from sluice.tuning.tune_classes import accepted, build, guarded, import_class
from sluice.tuning.tune_space import (
    encode,
    optuna_space,
    own_params,
    tune_space,
    whole_config,
)

if TYPE_CHECKING:
    from ray.tune.search import Searcher

_MODE = "min"


def make_searcher(
    settings: SearchSettings, strategy: Strategy, space: Space, base: Setup, metric: str
) -> "Searcher":
    """Return a fresh searcher that knows its space, metric and mode: ``Tuner`` gets no space.

    Trial 0 has the values of ``base`` where the space holds them, unless a given class takes no
    points to begin with.

    Args:
        settings: The seed, the random trials before TPE, and the class where one is given.
        strategy: Random values or TPE.
        space: What is searched.
        base: The settings of all else.
        metric: What is minimised.

    Raises:
        SettingsError: A given class does not exist, is no searcher, refuses its arguments or the
            space, or lacks its library.

    Cost:
        Loads Ray, 1.4 s.
    """
    seed = derive_seed(settings.seed, "searcher") % 2**32
    if settings.searcher is not None:
        return _by_class(settings.searcher, space, base, metric=metric, seed=seed)
    searcher: Searcher = _optuna_search()(
        optuna_space(space, base),
        metric=metric,
        mode=_MODE,
        points_to_evaluate=[encode(space, base, own_params(space, base))],
        sampler=_sampler(strategy.proposals, seed=seed, startup_trials=settings.startup_trials),
    )
    return searcher


def _sampler(proposals: str, *, seed: int, startup_trials: int) -> Any:
    import optuna

    if proposals == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of options that optuna calls experimental
        return optuna.samplers.TPESampler(
            n_startup_trials=startup_trials,
            multivariate=True,
            group=True,
            constant_liar=True,
            seed=seed,
        )


@functools.cache
def _optuna_search() -> Any:
    from ray.tune.search.optuna import OptunaSearch

    class QuietOptunaSearch(OptunaSearch):
        """``OptunaSearch`` to which a failed trial is the worst, where Optuna ignores it.

        TPE then turns away from values with which trials fail. Results on the way are left out:
        samplers do not read them, and PBT repeats epochs.
        """

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            with quiet_optuna():
                super().__init__(*args, **kwargs)

        def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
            pass

        def on_trial_complete(
            self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
        ) -> None:
            # Without a result and without an error it counts as pruned before its first step.
            super().on_trial_complete(trial_id, None if error else result, error=False)

    return QuietOptunaSearch


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Leave out Optuna's line about a new study.

    Not in every call: a change of the level empties the caches of all loggers, which took a quarter
    of the time of a study's decisions.
    """
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(verbosity)


def _by_class(
    own: ClassSettings, space: Space, base: Setup, *, metric: str, seed: int
) -> "Searcher":
    from ray.tune.search.optuna import OptunaSearch

    cls = import_class(own.path, what="searcher")
    names, _ = accepted(cls)
    held = own_params(space, base)
    filled: dict[str, Any] = {"metric": metric, "mode": _MODE}
    if issubclass(cls, OptunaSearch):
        points = [encode(space, base, held)]
        filled |= {"space": optuna_space(space, base), "points_to_evaluate": points}
        found: Searcher = build(cls, own, filled, seed=seed, what="searcher")
        return found
    domains = tune_space(space, base)
    filled["points_to_evaluate"] = [whole_config(space, base, held)]
    searcher: Searcher = build(cls, own, filled, seed=seed, what="searcher")

    def receive_space() -> bool:
        return bool(searcher.set_search_properties(metric, _MODE, domains))

    if guarded(receive_space, own.path, what="searcher", takes=names):
        return searcher
    if "space" not in names:
        raise SettingsError(
            f"The searcher '{own.path}' takes no search space.",
            cause="Its set_search_properties returns False, and its constructor has no 'space'.",
            fix="Let set_search_properties store the space that it is given, and return True.",
        )
    given: Searcher = build(cls, own, filled | {"space": domains}, seed=seed, what="searcher")
    return given
