"""Builds classes of Ray Tune from import paths, with validated arguments.

A class is checked before it is called: any other callable would run with arguments from a file.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from sluice.base.errors import SettingsError
from sluice.base.imports import import_object
from sluice.base.settings import suggest_nearest
from sluice.tuning.settings import ClassSettings

RESERVED_ARGUMENTS = ("metric", "mode", "time_attr", "space")
"""Arguments that the search sets, so that a file cannot."""

SEED_ARGUMENTS = ("seed", "random_state_seed", "random_state", "random_seed", "rng_seed")
"""Common names of the argument that seeds a class."""

_NESTED = (
    "optuna.samplers._base.BaseSampler",
    "nevergrad.optimization.base.Optimizer",
    "nevergrad.optimization.base.ConfiguredOptimizer",
)
"""Allowed base classes of arguments; by name, because the libraries may be missing."""

_EXTRA = "pip install 'sluice-mlops[searchers]'"


def import_class(path: str, *, what: str) -> Any:
    """Return the scheduler or searcher of Ray Tune at ``path``.

    Args:
        path: 'module:Class', or 'module.Class'.
        what: 'scheduler' or 'searcher'.

    Raises:
        SettingsError: It does not import, is not a class of that kind, or cannot be resumed.

    Cost:
        Imports Ray, 1.4 s.
    """
    from ray.tune.schedulers import ResourceChangingScheduler, TrialScheduler
    from ray.tune.search import Searcher

    base: type = {"scheduler": TrialScheduler, "searcher": Searcher}[what]
    found = import_object(_with_colon(path), what=what)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise SettingsError(
            f"The {what} '{path}' must be a subclass of {base.__module__}:{base.__qualname__}, got "
            f"{found!r}.",
            fix=f"Use a {what} of Ray Tune, or let the class inherit from {base.__qualname__}.",
        )
    if issubclass(found, ResourceChangingScheduler):
        raise SettingsError(
            f"The scheduler '{path}' is not supported.",
            cause="It decides by the currently free resources and replaces workers during a "
            "trial, so its decisions cannot be replayed after a kill.",
            fix="Use the scheduler that it wraps, and set compute.cpus_per_worker or "
            "compute.gpus_per_worker.",
        )
    return found


def build(
    cls: Any, settings: ClassSettings, filled: Mapping[str, Any], *, seed: int, what: str
) -> Any:
    """Return an instance of a class.

    Args:
        cls: The class of ``settings``.
        settings: Its import path, and the arguments from the file.
        filled: Arguments that the search determines, used if the class takes them and the file does
            not set them.
        seed: Seed of the instance, if the class takes one under a common name; an instance among
            its arguments is seeded instead.
        what: Role of the class, for messages.

    Raises:
        SettingsError: The class does not take an argument, refuses a value, or lacks its library.
    """
    names, is_open = accepted_arguments(cls)
    own = [name for name in names if name not in RESERVED_ARGUMENTS]
    for name in settings.arguments:
        if name in RESERVED_ARGUMENTS:
            raise SettingsError(
                f"The argument '{name}' of the {what} '{settings.path}' cannot be set.",
                cause="The search sets this argument.",
                fix="Remove it from the arguments. Other arguments are: "
                f"{', '.join(own) or 'none'}.",
            )
        if name not in names and not is_open:
            raise SettingsError(
                f"The {what} '{settings.path}' does not take the argument '{name}'."
                f"{suggest_nearest(name, own)}",
                fix=f"Correct its arguments. It takes: {', '.join(own) or 'none'}.",
            )
    # If both are given, Ray ignores the seed of OptunaSearch, and a sampler of a wrong type.
    is_seeded_inside = any(_is_class(value) for value in settings.arguments.values())
    seeds = dict.fromkeys(SEED_ARGUMENTS, seed)
    if is_seeded_inside or "sampler" in settings.arguments:
        seeds = {}
    known = {name: value for name, value in (seeds | dict(filled)).items() if name in names}
    nested = {
        name: _nested(value, seed=seed, where=f"{settings.path}: {name}")
        for name, value in settings.arguments.items()
    }
    return call_library(lambda: cls(**(known | nested)), settings.path, what=what, takes=own)


def call_library(make: Any, path: str, *, what: str, takes: list[str]) -> Any:
    """Return the result of ``make``; its exceptions become a ``SettingsError``.

    Args:
        make: Calls a class of a library, without arguments.
        path: Import path of the class.
        what: Role of the class, for messages.
        takes: Names of its arguments.
    """
    try:
        return make()
    except Exception as error:  # the class may raise anything
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        if isinstance(error, ImportError) or "install" in reason.lower():
            raise SettingsError(
                f"The {what} '{path}' lacks its library: {reason}.",
                fix=f"Install that library; HyperOpt is in an extra ({_EXTRA}).",
            ) from error
        raise SettingsError(
            f"The {what} '{path}' refuses its arguments: {reason}.",
            fix=f"Correct its arguments. It takes: {', '.join(takes) or 'none'}.",
        ) from error


def accepted_arguments(cls: Any) -> tuple[list[str], bool]:
    """Return the names of a constructor's arguments, and whether it may take others."""
    names: list[str] = []
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        if base is object:
            return names, False
        parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        kinds = {parameter.kind for parameter in parameters}
        variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        names += [p.name for p in parameters if p.kind not in variable and p.name not in names]
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            return names, False
        if base.__module__.startswith("ray."):
            return names, True  # passes them on to a library, not to its base class
    return names, True


def has_base(cls: type, base: str) -> bool:
    """Return whether a class inherits from a class of the given name, which may be missing."""
    return base in {f"{each.__module__}.{each.__qualname__}" for each in cls.__mro__}


def _is_class(value: Any) -> bool:
    return isinstance(value, dict) and "class" in value


def _nested(value: Any, *, seed: int, where: str) -> Any:
    if not _is_class(value):
        return value
    settings = ClassSettings.parse(value, where=where)
    found = import_object(_with_colon(settings.path), what="argument")
    cls = found if isinstance(found, type) else type(found)
    if not any(has_base(cls, base) for base in _NESTED):
        raise SettingsError(
            f"{where}: '{settings.path}' must be a sampler of Optuna or an optimizer of Nevergrad, "
            f"got {found!r}.",
            fix="Use such a class; other objects cannot be arguments.",
        )
    if "arguments" not in value:
        return found
    return build(found, settings, {}, seed=seed, what="argument")


def _with_colon(path: str) -> str:
    if ":" in path:
        return path
    module, _, name = path.rpartition(".")
    return f"{module}:{name}"
