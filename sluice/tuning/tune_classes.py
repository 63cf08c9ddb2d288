"""Creates schedulers and searchers of Ray Tune from import paths, with validated arguments.

Each imported object is checked before it is called, because a settings file must not be able to
call an arbitrary function.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from sluice.base.errors import SettingsError
from sluice.base.imports import import_object
from sluice.base.settings import suggest_nearest
from sluice.tuning.settings import ClassSettings

RESERVED_ARGUMENTS = ("metric", "mode", "time_attr", "space")
"""Arguments that the search sets. A settings file must not set them."""

SEED_ARGUMENTS = ("seed", "random_state_seed", "random_state", "random_seed", "rng_seed")
"""Common names of the argument for the seed."""

_ALLOWED_ARGUMENT_BASES = (
    "optuna.samplers._base.BaseSampler",
    "nevergrad.optimization.base.Optimizer",
    "nevergrad.optimization.base.ConfiguredOptimizer",
)
"""Full names of the base classes of objects that may be arguments. The classes are not imported,
because their libraries may not be installed."""

_INSTALL_COMMAND = "pip install 'sluice-mlops[searchers]'"


def import_class(path: str, *, what: str) -> Any:
    """Return the scheduler or searcher of Ray Tune at ``path``.

    Args:
        path: 'module:Class', or 'module.Class'.
        what: 'scheduler' or 'searcher'.

    Raises:
        SettingsError: The class cannot be imported, is not a scheduler or searcher of Ray Tune, or
            makes decisions that cannot be resumed.

    Cost:
        Imports Ray, 1.4 s.
    """
    from ray.tune.schedulers import ResourceChangingScheduler, TrialScheduler
    from ray.tune.search import Searcher

    base: type = {"scheduler": TrialScheduler, "searcher": Searcher}[what]
    imported = import_object(_with_colon(path), what=what)
    if not (isinstance(imported, type) and issubclass(imported, base)):
        raise SettingsError(
            f"The {what} '{path}' must be a subclass of {base.__module__}:{base.__qualname__}, got "
            f"{imported!r}.",
            fix=f"Use a {what} of Ray Tune, or let the class inherit from {base.__qualname__}.",
        )
    if issubclass(imported, ResourceChangingScheduler):
        raise SettingsError(
            f"The scheduler '{path}' is not supported.",
            cause="It decides by the currently free resources and replaces workers during a "
            "trial, so its decisions cannot be replayed after a kill.",
            fix="Use the scheduler that it wraps, and set compute.cpus_per_worker or "
            "compute.gpus_per_worker.",
        )
    return imported


def build(
    cls: Any, settings: ClassSettings, defaults: Mapping[str, Any], *, seed: int, what: str
) -> Any:
    """Create an instance of a class with the arguments of the settings and those of the search.

    Args:
        cls: The imported class.
        settings: Import path of the class, and the arguments from the file.
        defaults: Arguments that the search determines. The instance gets an argument if the class
            accepts the argument and the file does not set it.
        seed: Seed of the instance, if the class takes a seed under a common name. If the file gives
            an argument as a class, the instance for this argument gets the seed instead.
        what: Role of the class, for messages.

    Raises:
        SettingsError: The class does not take an argument, refuses a value, or needs a library that
            is not installed.
    """
    accepted_names, accepts_kwargs = accepted_arguments(cls)
    settable_names = settable_arguments(cls)
    for name in settings.arguments:
        if name in RESERVED_ARGUMENTS:
            raise SettingsError(
                f"The argument '{name}' of the {what} '{settings.path}' cannot be set.",
                cause="The search sets this argument.",
                fix=f"Remove '{name}' from the arguments. Other arguments are: "
                f"{', '.join(settable_names) or 'none'}.",
            )
        if name not in accepted_names and not accepts_kwargs:
            raise SettingsError(
                f"The {what} '{settings.path}' does not take the argument '{name}'."
                f"{suggest_nearest(name, settable_names)}",
                fix=f"Correct its arguments. It takes: {', '.join(settable_names) or 'none'}.",
            )
    # With both a seed and a sampler, OptunaSearch ignores the seed and does not check the type of
    # the sampler. Therefore no seed is passed with a sampler or with an argument that is a class.
    has_class_argument = any(_is_class_mapping(value) for value in settings.arguments.values())
    seeds = dict.fromkeys(SEED_ARGUMENTS, seed)
    if has_class_argument or "sampler" in settings.arguments:
        seeds = {}
    accepted_defaults = {
        name: value for name, value in (seeds | dict(defaults)).items() if name in accepted_names
    }
    file_arguments = {
        name: _build_argument(value, seed=seed, where=f"{settings.path}: {name}")
        for name, value in settings.arguments.items()
    }
    arguments = accepted_defaults | file_arguments
    return call_library(
        lambda: cls(**arguments), settings.path, what=what, settable_names=settable_names
    )


def call_library(make: Any, path: str, *, what: str, settable_names: list[str]) -> Any:
    """Return the result of ``make``; convert its exceptions to a ``SettingsError``.

    Args:
        make: Function without arguments that calls a class of a library.
        path: Import path of the class.
        what: Role of the class, for messages.
        settable_names: Names of the arguments that a settings file may set, for messages.
    """
    try:
        return make()
    except Exception as error:  # the class may raise anything
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        if isinstance(error, ImportError) or "install" in reason.lower():
            raise SettingsError(
                f"The {what} '{path}' lacks its library: {reason}.",
                fix=f"Install that library; HyperOpt is in an extra ({_INSTALL_COMMAND}).",
            ) from error
        raise SettingsError(
            f"The {what} '{path}' refuses its arguments: {reason}.",
            fix=f"Correct its arguments. It takes: {', '.join(settable_names) or 'none'}.",
        ) from error


def accepted_arguments(cls: Any) -> tuple[list[str], bool]:
    """Return the names of a constructor's arguments, and whether ``**kwargs`` may accept others."""
    names: list[str] = []
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        if base is object:
            return names, False
        parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        kinds = {parameter.kind for parameter in parameters}
        variadic_kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        names += [
            p.name for p in parameters if p.kind not in variadic_kinds and p.name not in names
        ]
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            return names, False
        if base.__module__.startswith("ray."):
            return names, True  # Ray's classes pass **kwargs to a library, not to the base class
    return names, True


def settable_arguments(cls: Any) -> list[str]:
    """Return the names of a constructor's arguments that a settings file may set."""
    return [name for name in accepted_arguments(cls)[0] if name not in RESERVED_ARGUMENTS]


def has_base(cls: type, base_name: str) -> bool:
    """Return whether a class has a base class of this full name, without importing the base."""
    return base_name in {f"{parent.__module__}.{parent.__qualname__}" for parent in cls.__mro__}


def _is_class_mapping(value: Any) -> bool:
    return isinstance(value, dict) and "class" in value


def _build_argument(value: Any, *, seed: int, where: str) -> Any:
    """Return the value of an argument. For a mapping with 'class', see ``ClassSettings``."""
    if not _is_class_mapping(value):
        return value
    settings = ClassSettings.parse(value, where=where)
    imported = import_object(_with_colon(settings.path), what="argument")
    cls = imported if isinstance(imported, type) else type(imported)
    if not any(has_base(cls, base_name) for base_name in _ALLOWED_ARGUMENT_BASES):
        raise SettingsError(
            f"{where}: '{settings.path}' must be a sampler of Optuna or an optimizer of Nevergrad, "
            f"got {imported!r}.",
            fix="Use such a class; other objects cannot be arguments.",
        )
    if "arguments" not in value:
        return imported
    return build(imported, settings, {}, seed=seed, what="argument")


def _with_colon(path: str) -> str:
    if ":" in path:
        return path
    module, _, name = path.rpartition(".")
    return f"{module}:{name}"
