"""From the budget to the strategy (TUNE-1)."""

from sluice.errors import SettingsError
from sluice.training.settings import CHANGING
from sluice.tuning.parameters import Choice
from sluice.tuning.records import Strategy
from sluice.tuning.settings import SearchSettings
from sluice.tuning.space_fit import require_fit
from sluice.tuning.spaces import Setup, Space

_TPE_FROM, _ASHA_ABOVE = 20, 100

PERTURBED = tuple(f"training.{name}" for name in CHANGING)
"""What PBT may change: what a training recipe can say. Not the dropout: where a network has it,
only the network knows, so a recipe could not change it in every architecture."""


def plan_search(space: Space, settings: SearchSettings, base: Setup) -> tuple[Strategy, Space]:
    """Return the strategy and the part of the space that it searches.

    Raises:
        SettingsError: The space does not suit ``base``, or PBT has nothing or no time to change.
    """
    strategy = choose_strategy(space, settings, max_epochs=base.training.max_epochs)
    searched = space.leading(len(strategy.parameters))
    require_fit(searched, base)
    return strategy, searched


def choose_strategy(space: Space, settings: SearchSettings, *, max_epochs: int) -> Strategy:
    """Return how a search with this budget proposes and stops trials.

    Under 20 trials: random values of the leading parameters, since a model of the loss learns
    nothing from so few and more dimensions than three stay empty. 20 to 100: TPE on all
    parameters. Above: random proposals under ASHA, which owes its speed to many cheap starts.
    Weak trials are stopped early in all of them (TUNE-2), unless ``scheduler`` is 'none'.

    Args:
        space: All parameters, the leading ones first.
        settings: The budget, and a scheduler when one is asked for.
        max_epochs: Length of a trial that is not stopped [epochs].

    Raises:
        SettingsError: PBT has nothing it may change, or no time to change it.

    Source:
        Bergstra et al. (2011), "Algorithms for Hyper-Parameter Optimization", NeurIPS (TPE);
        Li et al. (2020), "A System for Massively Parallel Hyperparameter Tuning", MLSys (ASHA).
    """
    count, asked = settings.num_trials, settings.scheduler
    if asked == "pbt":
        return _population(space, settings, max_epochs)
    few, many = count < _TPE_FROM, count > _ASHA_ABOVE
    searched = space.leading(settings.leading_parameters) if few else space
    scheduler = "asha" if many else "median"
    if asked in ("asha", "none"):
        scheduler = asked
    grace = min(settings.grace_epochs, max(1, max_epochs // settings.reduction))
    if max_epochs > settings.grace_epochs:
        grace = settings.grace_epochs
    first = grace
    epochs: list[int] = []
    replaced = ""
    if scheduler == "asha":
        while grace < max_epochs:
            epochs.append(grace)
            grace *= settings.reduction
    elif scheduler == "median":
        epochs = list(range(grace, max_epochs, max(1, grace // 2)))
    if epochs and first != settings.grace_epochs:
        replaced = (
            f" Trials may be stopped from epoch {first} on: grace_epochs "
            f"{settings.grace_epochs} is not below max_epochs {max_epochs}."
        )
    size = "under 20" if few else "over 100" if many else "20 to 100"
    return Strategy(
        proposals="random" if few or many else "tpe",
        scheduler=scheduler,
        parameters=tuple(searched.parameters),
        decision_epochs=tuple(epochs),
        reason=f"{count} trials ({size}), scheduler '{asked}'.{replaced}",
    )


def _population(space: Space, settings: SearchSettings, max_epochs: int) -> Strategy:
    every = settings.perturbation_epochs
    changed = [path for path in space.parameters if path in PERTURBED]
    if not changed or all(isinstance(space.parameters[path], Choice) for path in changed):
        raise SettingsError(
            f"PBT must change a parameter while it trains, and the space has none of "
            f"{', '.join(PERTURBED)} with a range.",
            fix="Add one of them to the space, or take another scheduler.",
        )
    if max_epochs <= every:
        raise SettingsError(
            f"PBT changes values every {every} epochs (perturbation_epochs), and trials end "
            f"after {max_epochs} (max_epochs).",
            fix="Raise training.max_epochs or lower perturbation_epochs.",
        )
    return Strategy(
        proposals="random",
        scheduler="pbt",
        parameters=tuple(space.parameters),
        decision_epochs=tuple(range(every, max_epochs, every)),
        reason=f"PBT on request, {settings.num_trials} members, a step every {every} epochs.",
    )
