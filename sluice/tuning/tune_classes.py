"""Classes of Ray Tune that settings name by import path, built with checked arguments.

A class is checked before it is called: any other callable would run with the arguments of a file.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from sluice.base.errors import SettingsError
from sluice.base.imports import import_named
from sluice.base.settings import nearest
from sluice.tuning.settings import ClassSettings

FILLED = ("metric", "mode", "time_attr", "space")
"""Arguments that the search sets and a file does not."""

SEEDS = ("seed", "random_state_seed", "random_state", "random_seed", "rng_seed")
"""Usual names of the argument that makes a class repeatable."""

_NESTED = (
    "optuna.samplers._base.BaseSampler",
    "nevergrad.optimization.base.Optimizer",
    "nevergrad.optimization.base.ConfiguredOptimizer",
)
"""Base classes of what an argument may be; by name, since the libraries may be absent."""

_EXTRA = "pip install 'sluice-mlops[searchers]'"


def import_class(path: str, *, what: str) -> Any:
    """Return the scheduler or searcher of Ray Tune that ``path`` names.

    Args:
        path: 'module:Class', or 'module.Class'.
        what: 'scheduler' or 'searcher'.

    Raises:
        SettingsError: It does not import, is no class of that kind, or cannot be resumed.

    Cost:
        Loads Ray, 1.4 s.
    """
    from ray.tune.schedulers import ResourceChangingScheduler, TrialScheduler
    from ray.tune.search import Searcher

    base: type = {"scheduler": TrialScheduler, "searcher": Searcher}[what]
    found = import_named(_with_colon(path), what=what)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise SettingsError(
            f"The {what} '{path}' must be a subclass of {base.__module__}:{base.__qualname__}, got "
            f"{found!r}.",
            fix=f"Name a {what} of Ray Tune, or let the class inherit from {base.__qualname__}.",
        )
    if issubclass(found, ResourceChangingScheduler):
        raise SettingsError(
            f"The scheduler '{path}' cannot be used.",
            cause="It decides by the free resources of the moment and replaces workers in "
            "mid-trial, so its decisions cannot be repeated after a kill.",
            fix="Name the scheduler that it wraps, and set compute.cpus_per_worker or "
            "compute.gpus_per_worker.",
        )
    return found


def build(
    cls: Any, settings: ClassSettings, filled: Mapping[str, Any], *, seed: int, what: str
) -> Any:
    """Return an object of a class.

    Args:
        cls: The class of ``settings``.
        settings: Its import path, and the arguments that the file gives.
        filled: Arguments that follow from the search, used where the class takes them and the
            file does not give them.
        seed: Seed of the object, where the class takes one under a usual name; an object among
            its arguments is seeded in its place.
        what: What it is for, to begin messages with.

    Raises:
        SettingsError: It does not take an argument, refuses a value, or lacks its library.
    """
    names, is_open = accepted(cls)
    own = [name for name in names if name not in FILLED]
    for name in settings.arguments:
        if name in FILLED:
            raise SettingsError(
                f"The {what} '{settings.path}' cannot be given '{name}'.",
                cause="The search sets it.",
                fix=f"Take it out of the arguments. The others are: {', '.join(own) or 'none'}.",
            )
        if name not in names and not is_open:
            raise SettingsError(
                f"The {what} '{settings.path}' does not take the argument '{name}'."
                f"{nearest(name, own)}",
                fix=f"Correct its arguments. It takes: {', '.join(own) or 'none'}.",
            )
    # Ray ignores the seed of OptunaSearch, and a sampler of a wrong type, where both are given.
    is_seeded_inside = any(_is_class(value) for value in settings.arguments.values())
    seeds = dict.fromkeys(SEEDS, seed)
    if is_seeded_inside or "sampler" in settings.arguments:
        seeds = {}
    known = {name: value for name, value in (seeds | dict(filled)).items() if name in names}
    given = {
        name: _nested(value, seed=seed, where=f"{settings.path}: {name}")
        for name, value in settings.arguments.items()
    }
    return guarded(lambda: cls(**(known | given)), settings.path, what=what, takes=own)


def guarded(make: Any, path: str, *, what: str, takes: list[str]) -> Any:
    """Return what ``make`` returns; what it raises becomes a ``SettingsError``.

    Args:
        make: Calls a class of a library, without arguments.
        path: Import path of the class.
        what: What it is for, to begin messages with.
        takes: Names of its arguments.
    """
    try:
        return make()
    except Exception as error:  # whatever the class raises
        said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        if isinstance(error, ImportError) or "install" in said.lower():
            raise SettingsError(
                f"The {what} '{path}' lacks its library: {said}.",
                fix=f"Install the library that is named; HyperOpt is in an extra ({_EXTRA}).",
            ) from error
        raise SettingsError(
            f"The {what} '{path}' refuses its arguments: {said}.",
            fix=f"Correct its arguments. It takes: {', '.join(takes) or 'none'}.",
        ) from error


def accepted(cls: Any) -> tuple[list[str], bool]:
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
            return names, True  # passes them on to a library, not to its base
    return names, True


def inherits(cls: type, base: str) -> bool:
    """Return whether a class inherits from the one of that name, whose library may be absent."""
    return base in {f"{each.__module__}.{each.__qualname__}" for each in cls.__mro__}


def _is_class(value: Any) -> bool:
    return isinstance(value, dict) and "class" in value


def _nested(value: Any, *, seed: int, where: str) -> Any:
    if not _is_class(value):
        return value
    settings = ClassSettings.parse(value, where=where)
    found = import_named(_with_colon(settings.path), what="argument")
    cls = found if isinstance(found, type) else type(found)
    if not any(inherits(cls, base) for base in _NESTED):
        raise SettingsError(
            f"{where}: '{settings.path}' must be a sampler of Optuna or an optimizer of Nevergrad, "
            f"got {found!r}.",
            fix="Name such a class; other objects cannot be arguments.",
        )
    if "arguments" not in value:
        return found
    return build(found, settings, {}, seed=seed, what="argument")


def _with_colon(path: str) -> str:
    if ":" in path:
        return path
    module, _, name = path.rpartition(".")
    return f"{module}:{name}"
