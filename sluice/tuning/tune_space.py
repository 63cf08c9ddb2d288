"""A search space as Ray Tune and Optuna have it, and a trial's values as Tune's config has them.

Tune's config is flat. Most parameters are under their dotted path. Four have other names, so that
every searcher can search them and every scheduler can change them:

- ``PATH#on`` (true or false) beside ``PATH`` for a parameter that may be off;
- ``PATH#exponent`` for a power of two, ``PATH#multiple`` for a multiple of another number than 1;
- ``PATH#option``, the place in the list, for options that are not scalars of one type;
- ``PATH#quantile`` for a normal distribution, which most searchers do not have.

Conditions hold in ``optuna_space``. Other searchers search every name, and ``decode`` drops what
does not count.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.base.errors import ContractError
from sluice.tuning.conditions import option_index
from sluice.tuning.parameters import (
    Choice,
    Integers,
    LogUniform,
    Params,
    PowersOfTwo,
    Uniform,
    Value,
)
from sluice.tuning.spaces import Setup, Space
from sluice.tuning.tune_functions import LEAST_QUANTILE, TuneFunction

if TYPE_CHECKING:
    from ray.tune.search.sample import Domain


def tune_space(space: Space, base: Setup) -> "dict[str, Domain]":
    """Return Tune's sample functions by name of the config.

    Args:
        space: What is searched.
        base: The settings of all else. What never counts with them is left out.

    Cost:
        Loads Ray.
    """
    return {
        name: domain
        for path in possible_paths(space, base)
        for name, domain in domains(path, space.parameters[path]).items()
    }


def possible_paths(space: Space, base: Setup) -> tuple[str, ...]:
    """Return the parameters that count in some trial, in the order of the space."""
    found: list[str] = []
    for path, parameter in space.parameters.items():
        if parameter.when is None:
            found.append(path)
            continue
        other = parameter.when.path
        is_fixed = other not in space.parameters
        if base.value(other) in parameter.when.one_of if is_fixed else other in found:
            found.append(path)
    return tuple(found)


def domains(path: str, parameter: Any) -> "dict[str, Domain]":
    """Return Tune's sample functions of one parameter by name of the config."""
    from ray import tune

    name = name_of(path, parameter)
    if isinstance(parameter, LogUniform):
        rate = {name: tune.loguniform(parameter.low, parameter.high)}
        return {f"{path}#on": tune.choice([True, False]), **rate} if parameter.may_be_off else rate
    if isinstance(parameter, Uniform):
        return {name: tune.uniform(parameter.low, parameter.high)}
    if isinstance(parameter, Integers):
        step = parameter.multiple_of
        return {name: tune.randint(parameter.low // step, parameter.high // step + 1)}
    if isinstance(parameter, PowersOfTwo):
        low, high = parameter.exponents
        return {name: tune.randint(low, high + 1)}
    if isinstance(parameter, Choice):
        return {name: tune.choice(categories(parameter))}
    if parameter.is_normal:
        return {name: tune.uniform(LEAST_QUANTILE, 1 - LEAST_QUANTILE)}
    return {name: getattr(tune, parameter.function)(*parameter.arguments)}


def name_of(path: str, parameter: Any) -> str:
    """Return the name in the config that holds the value of a parameter."""
    if isinstance(parameter, PowersOfTwo):
        return f"{path}#exponent"
    if isinstance(parameter, Integers) and parameter.multiple_of > 1:
        return f"{path}#multiple"
    if isinstance(parameter, Choice) and not _is_plain(parameter):
        return f"{path}#option"
    if isinstance(parameter, TuneFunction) and parameter.is_normal:
        return f"{path}#quantile"
    return path


def decode(space: Space, base: Setup, config: Mapping[str, Any]) -> Params:
    """Return a trial's values from Tune's config; what does not count is dropped.

    A value beyond the ends of its range, or between two steps of it, becomes the nearest one.

    Raises:
        ContractError: The config lacks the name of a parameter that counts.
    """

    def pick(path: str, parameter: Any) -> Value:
        try:
            if not config.get(f"{path}#on", True):
                return 0.0
            return decode_one(parameter, config[name_of(path, parameter)])
        except KeyError as error:
            raise ContractError(
                f"The config of a trial must hold {error}, it holds: {', '.join(sorted(config))}.",
                fix="Let the searcher suggest every name of tune_space.",
            ) from None

    return space.choose(base, pick)


def decode_one(parameter: Any, value: Any) -> Value:
    """Return the value of one parameter from what the config holds under ``name_of``."""
    plain = value.item() if hasattr(value, "item") else value  # some searchers return numpy scalars
    if isinstance(parameter, Choice):
        index = option_index(parameter.options, plain) if _is_plain(parameter) else int(plain)
        assert index is not None, f"{plain!r} is none of {list(parameter.options)}"
        option: Value = parameter.options[index]
        return option
    if isinstance(parameter, PowersOfTwo):
        low, high = parameter.exponents
        return int(1 << min(max(round(plain), low), high))
    if isinstance(parameter, Integers):
        return int(parameter.nearest(round(plain) * parameter.multiple_of))
    if isinstance(parameter, TuneFunction) and parameter.is_normal:
        return parameter.at(float(plain))
    nearest: Value = parameter.nearest(float(plain))
    return nearest


def encode(space: Space, base: Setup, params: Params) -> dict[str, Any]:
    """Return Tune's config of a trial's values; parameters without a value are left out.

    ``decode`` returns the same values, where ``params`` holds all that count.
    """
    del base
    config: dict[str, Any] = {}
    for path, value in params.items():
        parameter = space.parameters[path]
        name = name_of(path, parameter)
        if isinstance(parameter, LogUniform) and parameter.may_be_off:
            config[f"{path}#on"] = bool(value)
            if not value:
                continue
        config[name] = encode_one(parameter, value)
    return config


def whole_config(space: Space, base: Setup, params: Params) -> dict[str, Any]:
    """Return a config with every name of ``tune_space``, as most searchers require.

    A parameter without a value has the middle of its range, or its first option.
    """
    known = {
        path: params.get(path, _middle(space.parameters[path]))
        for path in possible_paths(space, base)
    }
    config = encode(space, base, known)
    for path in known:
        parameter = space.parameters[path]
        config.setdefault(name_of(path, parameter), encode_one(parameter, _middle(parameter)))
    return config


def own_params(space: Space, base: Setup) -> Params:
    """Return the values of ``base`` that count and that the space holds."""
    counted = _counted(space, base)
    return {path: value for path, value in counted.items() if space.parameters[path].holds(value)}


def not_held(space: Space, base: Setup) -> tuple[str, ...]:
    """Return the paths of active parameters whose value in ``base`` the space does not hold."""
    held = own_params(space, base)
    return tuple(path for path in _counted(space, base) if path not in held)


@dataclass(frozen=True, slots=True)
class DefineByRun:
    """A space for Optuna: called with a trial, it asks for the names that count and no others."""

    space: Space
    base: Setup

    def __call__(self, trial: Any) -> None:
        """Suggest a value for each name that counts."""
        self.space.choose(self.base, lambda path, parameter: _suggest(trial, path, parameter))


def optuna_space(space: Space, base: Setup) -> Callable[[Any], None]:
    """Return the space as a define-by-run function for ``OptunaSearch``, with its conditions."""
    return DefineByRun(space, base)


def _counted(space: Space, base: Setup) -> Params:
    """Return the values of ``base`` that count, held or not; None for what is not set."""

    def own(path: str, parameter: Any) -> Any:  # noqa: ARG001
        return base.value(path)

    return space.choose(base, own)


def _suggest(trial: Any, path: str, parameter: Any) -> Value:
    name = name_of(path, parameter)
    if isinstance(parameter, LogUniform) and parameter.may_be_off:  # noqa: SIM102 - asks Optuna
        if not trial.suggest_categorical(f"{path}#on", [True, False]):
            return 0.0
    if isinstance(parameter, Choice):
        return decode_one(parameter, trial.suggest_categorical(name, categories(parameter)))
    if isinstance(parameter, PowersOfTwo):
        return decode_one(parameter, trial.suggest_int(name, *parameter.exponents))
    if isinstance(parameter, Integers):
        step = parameter.multiple_of
        found = trial.suggest_int(name, parameter.low // step, parameter.high // step)
        return decode_one(parameter, found)
    low, high = parameter.low, parameter.high
    if not isinstance(parameter, TuneFunction):
        log = isinstance(parameter, LogUniform)
        return decode_one(parameter, trial.suggest_float(name, low, high, log=log))
    if parameter.is_normal:
        found = trial.suggest_float(name, LEAST_QUANTILE, 1 - LEAST_QUANTILE)
    elif parameter.is_whole:
        # Optuna has steps or a logarithm: 'decode' rounds to the quantum.
        step = 1 if parameter.is_log else int(parameter.quantum or 1)
        found = trial.suggest_int(name, low, high, step=step, log=parameter.is_log)
    else:
        found = trial.suggest_float(name, low, high, log=parameter.is_log)
    return decode_one(parameter, found)


def encode_one(parameter: Any, value: Value) -> Any:
    """Return what the config holds under ``name_of`` for a value that is not off."""
    if isinstance(parameter, Choice):
        return value if _is_plain(parameter) else option_index(parameter.options, value)
    if isinstance(parameter, PowersOfTwo):
        return int(value).bit_length() - 1  # type: ignore[arg-type]
    if isinstance(parameter, Integers):
        return int(value) // parameter.multiple_of  # type: ignore[arg-type]
    if isinstance(parameter, TuneFunction) and parameter.is_normal:
        return min(max(parameter.place(value) or 0.0, LEAST_QUANTILE), 1 - LEAST_QUANTILE)
    return value


def _middle(parameter: Any) -> Value:
    middle: Value = parameter.options[0] if isinstance(parameter, Choice) else parameter.at(0.5)
    return middle


def categories(parameter: Choice) -> list[Any]:
    """Return what the config may hold for a choice: its options, or their places."""
    if _is_plain(parameter):
        return list(parameter.options)
    return list(range(len(parameter.options)))


def _is_plain(parameter: Choice) -> bool:
    """Return whether the options are scalars of one type, which every searcher tells apart."""
    types = {type(option) for option in parameter.options}
    return len(types) == 1 and types != {list}
