"""Converts search spaces and the values of trials between Sluice, Ray Tune and Optuna.

Tune's config is a flat dictionary. The key of most parameters is their dotted path. Some parameters
have other keys, so that every searcher can search them and every scheduler can change them:

- ``PATH#on`` (true or false), in addition to ``PATH``, for a parameter that may be off;
- ``PATH#exponent`` for a power of two, ``PATH#multiple`` for an integer with ``multiple_of`` > 1;
- ``PATH#option``, the index in the list, for options that are not scalars of one type;
- ``PATH#quantile`` for a normal distribution, which most searchers do not support.

``optuna_space`` contains the conditions of parameters. Other searchers suggest a value for every
key, and ``decode`` drops inactive parameters.
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
from sluice.tuning.spaces import Space, TrialSettings
from sluice.tuning.tune_functions import MIN_QUANTILE, TuneFunction

if TYPE_CHECKING:
    from ray.tune.search.sample import Domain


def tune_space(space: Space, base: TrialSettings) -> "dict[str, Domain]":
    """Return Tune's sampling functions by key of the config.

    Args:
        space: The searched space.
        base: Settings before the values of a trial replace some of them. A parameter is omitted if
            no trial can satisfy its condition; see ``possible_paths``.

    Cost:
        Imports Ray.
    """
    return {
        key: domain
        for path in possible_paths(space, base)
        for key, domain in domains(path, space.parameters[path]).items()
    }


def possible_paths(space: Space, base: TrialSettings) -> tuple[str, ...]:
    """Return the parameters that may be active in some trial, in the order of the space.

    A condition on a setting that is not searched must be true in ``base``. A condition on a
    searched parameter requires only that this parameter may itself be active.
    """
    paths: list[str] = []
    for path, parameter in space.parameters.items():
        if parameter.when is None:
            paths.append(path)
            continue
        when_path = parameter.when.path
        if when_path in space.parameters:
            is_possible = when_path in paths
        else:
            is_possible = base.value(when_path) in parameter.when.one_of
        if is_possible:
            paths.append(path)
    return tuple(paths)


def domains(path: str, parameter: Any) -> "dict[str, Domain]":
    """Return Tune's sampling functions of one parameter by key of the config."""
    from ray import tune

    key = config_key(path, parameter)
    if isinstance(parameter, LogUniform):
        domain_by_key = {key: tune.loguniform(parameter.low, parameter.high)}
        if parameter.may_be_off:
            return {f"{path}#on": tune.choice([True, False]), **domain_by_key}
        return domain_by_key
    if isinstance(parameter, Uniform):
        return {key: tune.uniform(parameter.low, parameter.high)}
    if isinstance(parameter, Integers):
        step = parameter.multiple_of
        return {key: tune.randint(parameter.low // step, parameter.high // step + 1)}
    if isinstance(parameter, PowersOfTwo):
        low, high = parameter.exponents
        return {key: tune.randint(low, high + 1)}
    if isinstance(parameter, Choice):
        return {key: tune.choice(categories(parameter))}
    if parameter.is_normal:
        return {key: tune.uniform(MIN_QUANTILE, 1 - MIN_QUANTILE)}
    return {key: getattr(tune, parameter.function)(*parameter.arguments)}


def config_key(path: str, parameter: Any) -> str:
    """Return the key of the config that contains the value of a parameter."""
    if isinstance(parameter, PowersOfTwo):
        return f"{path}#exponent"
    if isinstance(parameter, Integers) and parameter.multiple_of > 1:
        return f"{path}#multiple"
    if isinstance(parameter, Choice) and not _has_scalar_options(parameter):
        return f"{path}#option"
    if isinstance(parameter, TuneFunction) and parameter.is_normal:
        return f"{path}#quantile"
    return path


def decode(space: Space, base: TrialSettings, config: Mapping[str, Any]) -> Params:
    """Return a trial's values from Tune's config, without inactive parameters.

    A value that a parameter does not allow is replaced by the nearest allowed value.

    Raises:
        ContractError: The config lacks the key of an active parameter.
    """

    def value_from_config(path: str, parameter: Any) -> Value:
        try:
            if not config.get(f"{path}#on", True):
                return 0.0
            return decode_one(parameter, config[config_key(path, parameter)])
        except KeyError as error:
            raise ContractError(
                f"The config of a trial must contain {error}. It contains: "
                f"{', '.join(sorted(config))}.",
                fix="Let the searcher suggest every key of tune_space.",
            ) from None

    return space.choose(base, value_from_config)


def decode_one(parameter: Any, value: Any) -> Value:
    """Return the value of one parameter from the entry of the config under ``config_key``."""
    # Some searchers return NumPy scalars.
    python_value = value.item() if hasattr(value, "item") else value
    if isinstance(parameter, Choice):
        index = (
            option_index(parameter.options, python_value)
            if _has_scalar_options(parameter)
            else int(python_value)
        )
        assert index is not None, f"{python_value!r} is not one of {list(parameter.options)}"
        option: Value = parameter.options[index]
        return option
    if isinstance(parameter, PowersOfTwo):
        low, high = parameter.exponents
        return int(1 << min(max(round(python_value), low), high))
    if isinstance(parameter, Integers):
        return int(parameter.nearest(round(python_value) * parameter.multiple_of))
    if isinstance(parameter, TuneFunction) and parameter.is_normal:
        return parameter.value_at(float(python_value))
    nearest: Value = parameter.nearest(float(python_value))
    return nearest


def encode(space: Space, params: Params) -> dict[str, Any]:
    """Return Tune's config for the values of a trial; parameters without a value are omitted.

    ``decode`` returns the same values if ``params`` contains all active parameters.
    """
    config: dict[str, Any] = {}
    for path, value in params.items():
        parameter = space.parameters[path]
        key = config_key(path, parameter)
        if isinstance(parameter, LogUniform) and parameter.may_be_off:
            config[f"{path}#on"] = bool(value)
            if not value:
                continue
        config[key] = encode_one(parameter, value)
    return config


def complete_config(space: Space, base: TrialSettings, params: Params) -> dict[str, Any]:
    """Return a config with every key of ``tune_space``, as most searchers require.

    A parameter without a value gets the middle of its range, or its first option.
    """
    params_by_path = {
        path: params.get(path, _middle_value(space.parameters[path]))
        for path in possible_paths(space, base)
    }
    config = encode(space, params_by_path)
    for path in params_by_path:
        parameter = space.parameters[path]
        config.setdefault(
            config_key(path, parameter), encode_one(parameter, _middle_value(parameter))
        )
    return config


def base_params(space: Space, base: TrialSettings) -> Params:
    """Return the values of active parameters in ``base``, except values outside the space."""
    active_values = _active_values(space, base)
    return {
        path: value
        for path, value in active_values.items()
        if space.parameters[path].contains(value)
    }


def paths_outside_space(space: Space, base: TrialSettings) -> tuple[str, ...]:
    """Return the paths of active parameters whose value in ``base`` is outside the space."""
    inside_params = base_params(space, base)
    return tuple(path for path in _active_values(space, base) if path not in inside_params)


@dataclass(frozen=True, slots=True)
class DefineByRun:
    """Define-by-run space for Optuna, which suggests values only for active parameters."""

    space: Space
    base: TrialSettings

    def __call__(self, trial: Any) -> None:
        """Suggest a value for each key of the active parameters."""
        self.space.choose(self.base, lambda path, parameter: _suggest(trial, path, parameter))


def optuna_space(space: Space, base: TrialSettings) -> Callable[[Any], None]:
    """Return the space as a define-by-run function for ``OptunaSearch``, with its conditions."""
    return DefineByRun(space, base)


def _active_values(space: Space, base: TrialSettings) -> Params:
    """Return the values of active parameters in ``base``; None for a setting that is not set."""

    def base_value(path: str, parameter: Any) -> Any:  # noqa: ARG001
        return base.value(path)

    return space.choose(base, base_value)


def _suggest(trial: Any, path: str, parameter: Any) -> Value:
    """Let Optuna suggest the value of one parameter."""
    key = config_key(path, parameter)
    if isinstance(parameter, LogUniform) and parameter.may_be_off:  # noqa: SIM102 - the condition calls Optuna
        if not trial.suggest_categorical(f"{path}#on", [True, False]):
            return 0.0
    if isinstance(parameter, Choice):
        return decode_one(parameter, trial.suggest_categorical(key, categories(parameter)))
    if isinstance(parameter, PowersOfTwo):
        return decode_one(parameter, trial.suggest_int(key, *parameter.exponents))
    if isinstance(parameter, Integers):
        step = parameter.multiple_of
        multiple = trial.suggest_int(key, parameter.low // step, parameter.high // step)
        return decode_one(parameter, multiple)
    low, high = parameter.low, parameter.high
    if not isinstance(parameter, TuneFunction):
        is_log = isinstance(parameter, LogUniform)
        return decode_one(parameter, trial.suggest_float(key, low, high, log=is_log))
    if parameter.is_normal:
        suggested = trial.suggest_float(key, MIN_QUANTILE, 1 - MIN_QUANTILE)
    elif parameter.is_integer:
        # Optuna supports either steps or a logarithmic scale. With a logarithmic scale, the value
        # is rounded to the quantum by ``decode_one``.
        step = 1 if parameter.is_log else int(parameter.quantum or 1)
        suggested = trial.suggest_int(key, low, high, step=step, log=parameter.is_log)
    else:
        suggested = trial.suggest_float(key, low, high, log=parameter.is_log)
    return decode_one(parameter, suggested)


def encode_one(parameter: Any, value: Value) -> Any:
    """Return the entry of the config under ``config_key`` for the value of an active parameter."""
    if isinstance(parameter, Choice):
        return value if _has_scalar_options(parameter) else option_index(parameter.options, value)
    if isinstance(parameter, PowersOfTwo):
        return int(value).bit_length() - 1  # type: ignore[arg-type]
    if isinstance(parameter, Integers):
        return int(value) // parameter.multiple_of  # type: ignore[arg-type]
    if isinstance(parameter, TuneFunction) and parameter.is_normal:
        return min(max(parameter.position(value) or 0.0, MIN_QUANTILE), 1 - MIN_QUANTILE)
    return value


def _middle_value(parameter: Any) -> Value:
    middle: Value = (
        parameter.options[0] if isinstance(parameter, Choice) else parameter.value_at(0.5)
    )
    return middle


def categories(parameter: Choice) -> list[Any]:
    """Return the entries of the config that a choice can have: its options, or their indices."""
    if _has_scalar_options(parameter):
        return list(parameter.options)
    return list(range(len(parameter.options)))


def _has_scalar_options(parameter: Choice) -> bool:
    """Return whether the options are scalars of one type, which every searcher can distinguish."""
    types = {type(option) for option in parameter.options}
    return len(types) == 1 and types != {list}
