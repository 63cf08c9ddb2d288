"""Selects how a search suggests and stops trials, by its number of trials."""

from sluice.base.errors import SettingsError
from sluice.base.pluralize import pluralize
from sluice.training.settings import CHANGEABLE_SETTINGS, may_change
from sluice.tuning.parameters import Choice, Value, boundary_values
from sluice.tuning.records import Strategy
from sluice.tuning.schedulers import grace_epochs, is_population_based, make_scheduler, metric_of
from sluice.tuning.searchers import make_searcher
from sluice.tuning.settings import ClassSettings, SearchSettings
from sluice.tuning.space_validation import require_trainable
from sluice.tuning.spaces import OPTIMIZER_PATH, Space, TrialSettings, split_path
from sluice.tuning.tune_classes import call_library, has_base, import_class, settable_arguments

_MIN_TPE_TRIALS, _MAX_TPE_TRIALS = 20, 100
"""TPE suggests values if the number of trials is in this range, ends included. With fewer or more
trials, the values are random."""

_BOHB_SCHEDULER = "ray.tune.schedulers.hb_bohb.HyperBandForBOHB"
_BOHB_SEARCHER = "ray.tune.search.bohb.bohb_search.TuneBOHB"
"""Full names of the two classes of BOHB, which must be used together."""

PERTURBABLE_SETTINGS = tuple(
    f"training.{name}"
    for name in CHANGEABLE_SETTINGS
    if name not in ("optimizer_arguments", "dropout")
)
"""Settings that PBT may change with any optimizer. Dropout is excluded, because not every network
has dropout."""


def plan_search(
    space: Space, settings: SearchSettings, base: TrialSettings
) -> tuple[Strategy, Space]:
    """Return the strategy, and the part of the space that it searches.

    A scheduler or searcher that the settings give by class is built once here, so that its errors
    are reported before the search starts.

    Raises:
        SettingsError: The space does not suit ``base``; PBT has no parameter that it may change, or
            trials are too short for a change; or a class in ``settings`` does not exist, refuses
            its arguments, or needs a library that is not installed.
    """
    strategy = choose_strategy(space, settings, base)
    searched_space = space.leading(len(strategy.parameters))
    require_trainable(searched_space, base)
    _require_bohb_pair(settings)
    if isinstance(settings.scheduler, ClassSettings):
        make_scheduler(settings, strategy, searched_space, base.training.max_epochs)
    if settings.searcher is not None:
        searcher = make_searcher(settings, strategy, searched_space, base, metric_of(strategy))
        # Let the searcher suggest a trial. Only then, some libraries are imported or check the
        # space.
        path = settings.searcher.path
        arguments = settable_arguments(import_class(path, what="searcher"))
        call_library(
            lambda: searcher.suggest("00000"), path, what="searcher", settable_names=arguments
        )
    return strategy, searched_space


def choose_strategy(space: Space, settings: SearchSettings, base: TrialSettings) -> Strategy:
    """Return how a search with this budget suggests and stops trials.

    - Under 20 trials: random values of the most important parameters only. Under 20 trials do not
      suffice for a model of the loss, or to cover more than three dimensions.
    - 20 to 100 trials: TPE on all parameters.
    - Over 100 trials: random values of all parameters.

    With the scheduler 'auto', weak trials are stopped early: by the median rule, or over 100 trials
    by ASHA, which is efficient with many short trials. A searcher that is given by class searches
    all parameters. With PBT all parameters are searched, with random values unless a searcher is
    given.

    Args:
        space: All parameters, the most important first.
        settings: Number of trials, and optionally a scheduler or searcher.
        base: Settings before the values of a trial replace some of them; ``training.max_epochs`` is
            the length of a trial that is not stopped.

    Raises:
        SettingsError: PBT has no parameter that it may change, or trials are too short for a
            change.

    Source:
        Bergstra et al. (2011), "Algorithms for Hyper-Parameter Optimization", NeurIPS (TPE); Li et
        al. (2020), "A System for Massively Parallel Hyperparameter Tuning", MLSys (ASHA).
    """
    num_trials, requested_scheduler = settings.num_trials, settings.scheduler
    max_epochs = base.training.max_epochs
    if is_population_based(requested_scheduler):
        return _population_strategy(space, settings, base)
    is_small, is_large = num_trials < _MIN_TPE_TRIALS, num_trials > _MAX_TPE_TRIALS
    proposals = "random" if is_small or is_large else "tpe"
    searched_space = space.leading(settings.leading_parameters) if is_small else space
    if settings.searcher is not None:
        proposals, searched_space = settings.searcher.path, space
    scheduler = (
        requested_scheduler.path
        if isinstance(requested_scheduler, ClassSettings)
        else requested_scheduler
    )
    if scheduler == "auto":
        scheduler = "asha" if is_large else "median"
    size = "under 20" if is_small else "over 100" if is_large else "20 to 100"
    grace = grace_epochs(settings, max_epochs)
    grace_note = ""
    if scheduler in ("asha", "median") and max_epochs > 1 and grace != settings.grace_epochs:
        grace_note = (
            f" Trials may be stopped from epoch {grace} on: grace_epochs "
            f"{settings.grace_epochs} is not below max_epochs {max_epochs}."
        )
    return Strategy(
        proposals=proposals,
        scheduler=scheduler,
        parameters=tuple(searched_space.parameters),
        decision_epochs=_decision_epochs(scheduler, settings, max_epochs),
        reason=f"{num_trials} trials ({size}), scheduler "
        f"'{_scheduler_name(requested_scheduler)}'.{grace_note}",
    )


def report_epochs(strategy: Strategy, settings: SearchSettings, max_epochs: int) -> tuple[int, ...]:
    """Return the epochs after which a trial reports: the decision epochs, and the last epoch.

    Args:
        strategy: Result of ``choose_strategy``.
        settings: Settings of the same search.
        max_epochs: Length of a trial that is not stopped [epochs].
    """
    return (*_decision_epochs(strategy.scheduler, settings, max_epochs), max_epochs)


def changing_paths(space: Space, base: TrialSettings) -> tuple[str, ...]:
    """Return the parameters that a scheduler may change during training.

    The trainer must be able to change the parameter, with each of its values and each optimizer of
    the space. No condition may refer to the parameter, because other parameters cannot become
    active during training.
    """
    condition_paths = {p.when.path for p in space.parameters.values() if p.when is not None}
    return tuple(
        path
        for path in space.parameters
        if path not in condition_paths and _may_change(path, space, base)
    )


def _may_change(path: str, space: Space, base: TrialSettings) -> bool:
    """Return whether a scheduler may change a parameter during training."""
    group, name, argument = split_path(path)
    if group != "training":
        return False
    if not argument:
        return may_change(path, base.training)
    for optimizer in _possible_optimizers(path, space, base):
        is_base = optimizer == base.training.optimizer
        arguments = base.training.optimizer_arguments if is_base else {}
        for value in boundary_values(space.parameters[path]):
            settings = base.training.model_copy(
                update={"optimizer": optimizer, name: arguments | {argument: value}}
            )
            if not may_change(path, settings):
                return False
    return True


def _possible_optimizers(path: str, space: Space, base: TrialSettings) -> list[Value]:
    """Return the optimizers with which a parameter can be active."""
    searched_optimizers, when = space.parameters.get(OPTIMIZER_PATH), space.parameters[path].when
    if not isinstance(searched_optimizers, Choice):
        return [base.training.optimizer]
    if when is not None and when.path == OPTIMIZER_PATH:
        return [option for option in searched_optimizers.options if option in when.one_of]
    return list(searched_optimizers.options)


def _decision_epochs(scheduler: str, settings: SearchSettings, max_epochs: int) -> tuple[int, ...]:
    """Return the epochs after which a trial reports, without the last epoch."""
    grace = grace_epochs(settings, max_epochs)
    if scheduler == "none":
        return ()
    if scheduler == "median":
        return tuple(range(grace, max_epochs, max(1, grace // 2)))
    if scheduler == "pbt":
        interval = settings.perturbation_epochs
        return tuple(range(interval, max_epochs, interval))
    if scheduler != "asha":
        return tuple(range(settings.report_epochs, max_epochs, settings.report_epochs))
    epochs: list[int] = []
    while grace < max_epochs:
        epochs.append(grace)
        grace *= settings.reduction
    return tuple(epochs)


def _population_strategy(space: Space, settings: SearchSettings, base: TrialSettings) -> Strategy:
    interval, max_epochs = settings.perturbation_epochs, base.training.max_epochs
    changing_parameters = changing_paths(space, base)
    if not changing_parameters:
        raise SettingsError(
            "PBT must change a parameter during training, but the space contains none of "
            f"{', '.join(PERTURBABLE_SETTINGS)} and no numeric argument of the optimizer.",
            fix="Add one of them to the space, or use another scheduler.",
        )
    if max_epochs <= interval:
        raise SettingsError(
            f"PBT changes values every {interval} epochs (perturbation_epochs), but trials end "
            f"after {pluralize(max_epochs, 'epoch')} (max_epochs).",
            fix="Raise training.max_epochs or lower perturbation_epochs.",
        )
    return Strategy(
        proposals=settings.searcher.path if settings.searcher is not None else "random",
        scheduler=_scheduler_name(settings.scheduler),
        parameters=tuple(space.parameters),
        decision_epochs=_decision_epochs(_scheduler_name(settings.scheduler), settings, max_epochs),
        changing=changing_parameters,
        reason=f"Scheduler '{_scheduler_name(settings.scheduler)}', {settings.num_trials} trials, "
        f"one step every {interval} epochs.",
    )


def _require_bohb_pair(settings: SearchSettings) -> None:
    """Refuse settings with only the scheduler or only the searcher of BOHB."""
    scheduler, searcher = settings.scheduler, settings.searcher
    if not isinstance(scheduler, ClassSettings) and searcher is None:
        return
    has_bohb_scheduler = isinstance(scheduler, ClassSettings) and has_base(
        import_class(scheduler.path, what="scheduler"), _BOHB_SCHEDULER
    )
    has_bohb_searcher = searcher is not None and has_base(
        import_class(searcher.path, what="searcher"), _BOHB_SEARCHER
    )
    if has_bohb_scheduler != has_bohb_searcher:
        raise SettingsError(
            "BOHB requires its scheduler and its searcher, but search sets only the "
            f"{'scheduler' if has_bohb_scheduler else 'searcher'}.",
            cause="The scheduler reports the budget of each bracket to the searcher.",
            fix="Set search.scheduler to {class: 'ray.tune.schedulers:HyperBandForBOHB'} and "
            "search.searcher to {class: 'ray.tune.search.bohb:TuneBOHB'}.",
        )


def _scheduler_name(scheduler: str | ClassSettings) -> str:
    return scheduler.path if isinstance(scheduler, ClassSettings) else scheduler
