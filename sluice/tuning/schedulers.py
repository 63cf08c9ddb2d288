"""Creates the Ray Tune scheduler of a search, by name or by import path."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.base.seeding import derive_seed
from sluice.tuning.parameters import Choice, Parameter
from sluice.tuning.records import Strategy
from sluice.tuning.settings import ClassSettings, SearchSettings
from sluice.tuning.spaces import Space
from sluice.tuning.tune_classes import build, import_class
from sluice.tuning.tune_space import categories, config_key, decode_one, domains, encode_one

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler

TIME_ATTR = "epoch"
"""Name of the reported counter that schedulers use as the time of a trial."""

_CLASS_PATHS = {
    "asha": "ray.tune.schedulers:ASHAScheduler",
    "median": "ray.tune.schedulers:MedianStoppingRule",
    "pbt": "ray.tune.schedulers:PopulationBasedTraining",
    "none": "ray.tune.schedulers:FIFOScheduler",
}
_MEDIAN_MIN_SAMPLES = 4
"""The median rule stops a trial only if it can compare the trial with at least this number of other
trials. With fewer trials, a loss above the median is no evidence that the trial is bad."""
_PERTURBATION_FACTORS = (0.8, 1.2)
"""Factors by which PBT multiplies a value that it changes."""
_EXPLOIT_QUANTILE = 0.25
"""In each step of PBT, this fraction of the trials (the worst) copies the weights of an equally
large fraction (the best)."""
_RESAMPLE_PROBABILITY = 0.25
"""Probability with which PBT resamples a value instead of multiplying it."""


def make_scheduler(
    settings: SearchSettings, strategy: Strategy, space: Space, max_epochs: int
) -> "TrialScheduler":
    """Return a new scheduler of Ray Tune, without metric and mode, which ``TuneConfig`` sets.

    Args:
        settings: Grace period, reduction factor, interval and seed, and optionally the class.
        strategy: Name of the scheduler, and the parameters that it may change during training.
        space: The searched space.
        max_epochs: Length of a trial that is not stopped [epochs].

    Raises:
        SettingsError: The class in ``settings`` does not exist, is not a scheduler, or refuses its
            arguments.

    Cost:
        Imports Ray, 1.4 s.
    """
    class_settings = settings.scheduler
    if not isinstance(class_settings, ClassSettings):
        class_settings = ClassSettings(path=_CLASS_PATHS[strategy.scheduler])
    cls = import_class(class_settings.path, what="scheduler")
    changing_parameters = {path: space.parameters[path] for path in strategy.changing}
    defaults: dict[str, Any] = {
        "time_attr": TIME_ATTR,
        "max_t": max_epochs,
        "grace_period": grace_epochs(settings, max_epochs),
        "reduction_factor": settings.reduction,
        "min_samples_required": _MEDIAN_MIN_SAMPLES,
        "perturbation_interval": settings.perturbation_epochs,
        "quantile_fraction": _EXPLOIT_QUANTILE,
        "resample_probability": _RESAMPLE_PROBABILITY,
        "perturbation_factors": _PERTURBATION_FACTORS,
        "hyperparam_mutations": _hyperparam_mutations(changing_parameters),
        "hyperparam_bounds": _hyperparam_bounds(changing_parameters),
        "custom_explore_fn": ClipToRange(
            {
                config_key(path, parameter): parameter
                for path, parameter in changing_parameters.items()
            }
        ),
    }
    seed = derive_seed(settings.seed, "scheduler") % 2**32
    scheduler: TrialScheduler = build(cls, class_settings, defaults, seed=seed, what="scheduler")
    return scheduler


def grace_epochs(settings: SearchSettings, max_epochs: int) -> int:
    """Return the minimum number of epochs before a trial may be stopped.

    The setting ``grace_epochs`` is reduced if it is not below ``max_epochs``.
    """
    if max_epochs > settings.grace_epochs:
        return settings.grace_epochs
    return min(settings.grace_epochs, max(1, max_epochs // settings.reduction))


def is_population_based(scheduler: str | ClassSettings) -> bool:
    """Return whether a scheduler is PBT or a variant, in which trials copy weights of other trials.

    Args:
        scheduler: A name from the settings, or the import path of a class.
    """
    path = scheduler.path if isinstance(scheduler, ClassSettings) else scheduler
    if "." not in path and ":" not in path:
        return path == "pbt"
    from ray.tune.schedulers import PopulationBasedTraining

    return issubclass(import_class(path, what="scheduler"), PopulationBasedTraining)


def metric_of(strategy: Strategy) -> str:
    """Return the reported metric that a search minimises.

    PBT compares the validation loss of the last epoch, because it copies the weights of that epoch;
    other schedulers compare the loss of the epoch that training would select.
    """
    return "val_loss" if is_population_based(strategy.scheduler) else "loss"


@dataclass(frozen=True, slots=True)
class ClipToRange:
    """Clips values to their ranges. PBT multiplies values, and the products may exceed a range."""

    parameters: Mapping[str, Parameter]
    """Parameters by key of Tune's config."""

    def __call__(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the config, with the nearest value of the range for each parameter."""
        return config | {
            name: encode_one(parameter, decode_one(parameter, config[name]))
            for name, parameter in self.parameters.items()
            if name in config
        }


def _hyperparam_mutations(changing_parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    return {
        # From a list, PBT takes a neighbouring or a random option. For a parameter that may be off,
        # only the range is passed, so that PBT never turns the parameter off.
        config_key(path, parameter): categories(parameter)
        if isinstance(parameter, Choice)
        else domains(path, parameter)[config_key(path, parameter)]
        for path, parameter in changing_parameters.items()
    }


def _hyperparam_bounds(changing_parameters: Mapping[str, Parameter]) -> dict[str, list[Any]]:
    return {
        config_key(path, parameter): [
            encode_one(parameter, parameter.value_at(end)) for end in (0.0, 1.0)
        ]
        for path, parameter in changing_parameters.items()
        if not isinstance(parameter, Choice)
    }
