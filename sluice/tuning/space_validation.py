"""Checks that every trial of a search space can be trained with its values."""

import math
from collections.abc import Mapping
from typing import Any

from sluice.base.errors import SettingsError
from sluice.base.settings import suggest_nearest
from sluice.models.settings import nearest_multiples
from sluice.tuning.parameters import (
    Integers,
    Parameter,
    PowersOfTwo,
    boundary_values,
    discrete_values,
)
from sluice.tuning.spaces import (
    WORKLOAD_GROUP,
    Space,
    TrialSettings,
    require_field_value,
    split_path,
)
from sluice.workloads.workload import WorkloadSettings

_ARCHITECTURE, _HIDDEN, _HEADS = "model.architecture", "model.hidden", "model.heads"


def require_trainable(space: Space, base: TrialSettings) -> None:
    """Refuse a space in which some trials could not be trained with their values.

    Args:
        space: The searched space.
        base: Settings before the values of a trial replace some of them.

    Raises:
        SettingsError: A width is no multiple of the number of attention heads (the message contains
            the nearest valid value), or ``training.changes`` overrides a searched setting.
    """
    _require_no_overrides(space, base)
    if "transformer" in _possible_values(space, base, _ARCHITECTURE):
        _require_divisible(space, base)


def workload_setting_names(space: Space) -> tuple[str, ...]:
    """Return the names of the workload settings that a space uses in a path or in a condition."""
    paths = [*space.parameters]
    paths += [p.when.path for p in space.parameters.values() if p.when is not None]
    groups_and_names = [split_path(path)[:2] for path in paths]
    return tuple(dict.fromkeys(name for group, name in groups_and_names if group == WORKLOAD_GROUP))


def require_valid_workload_settings(
    space: Space, settings_type: type[WorkloadSettings], settings: Mapping[str, Any], *, where: str
) -> None:
    """Refuse a space with an unknown setting of the workload or a value that a setting refuses.

    Args:
        space: The searched space.
        settings_type: The settings class of the workload.
        settings: The workload settings in the pipeline file.
        where: Name of the file, for the message.

    Raises:
        SettingsError: A setting is unknown (the nearest known setting is suggested), or a value is
            refused.
    """
    known_names = [name for name in settings_type.model_fields if name != "folds"]
    for name in workload_setting_names(space):
        if name not in known_names:
            raise SettingsError(
                f"'{WORKLOAD_GROUP}.{name}' is not a setting of the workload."
                f"{suggest_nearest(name, known_names)}",
                fix=f"Use one of: {', '.join(known_names)}.",
            )
    for path, parameter in space.parameters.items():
        group, name, _ = split_path(path)
        if group != WORKLOAD_GROUP:
            continue
        for value in boundary_values(parameter):
            require_field_value(settings_type, name, value, path=path, value=value)
    settings_type.parse(dict(settings), where=where)


def _require_no_overrides(space: Space, base: TrialSettings) -> None:
    for change in base.training.changes:
        for path in change.paths:
            # The path of a searched list item is the path of the list, followed by an index.
            if any(p == path or p.startswith(f"{path}.") for p in space.parameters):
                raise SettingsError(
                    f"'{path}' cannot be searched while training.changes sets it after epoch "
                    f"{change.from_epoch}: the change would override the value of the trial.",
                    fix="Remove this setting from training.changes or from the space.",
                )


def _require_divisible(space: Space, base: TrialSettings) -> None:
    head_counts = sorted({int(heads) for heads in _possible_values(space, base, _HEADS)})
    step = math.lcm(*head_counts)
    for width in _possible_values(space, base, _HIDDEN):
        if int(width) % step:
            raise _indivisible_width_error(
                int(width), head_counts, step, space.parameters.get(_HIDDEN)
            )


def _indivisible_width_error(
    width: int, head_counts: list[int], step: int, parameter: Parameter | None
) -> SettingsError:
    heads = ", ".join(map(str, head_counts))
    if isinstance(parameter, Integers):
        valid_steps = nearest_multiples(parameter.multiple_of, step)
        fix = f"Set multiple_of of model.hidden to {valid_steps}, and adjust low and high."
    elif isinstance(parameter, PowersOfTwo):
        fix = f"Search model.hidden as integers with multiple_of {step}, and adjust low and high."
    else:
        fix = f"Set model.hidden to {nearest_multiples(width, step)} instead of {width}."
    return SettingsError(
        f"'{_HIDDEN}' must be a multiple of {step} (attention heads: {heads}) for the architecture "
        f"'transformer', but the space contains {width}.",
        cause="The width is divided among the heads.",
        fix=fix,
    )


def _possible_values(space: Space, base: TrialSettings, path: str) -> list[Any]:
    """Return the values that a setting can have in a trial with the architecture 'transformer'."""
    base_value = base.value(path)
    parameter = space.parameters.get(path)
    if parameter is None:
        return [base_value]
    when, searched_values = parameter.when, list(discrete_values(parameter))
    if when is None or path == _ARCHITECTURE:
        return searched_values if when is None else [*searched_values, base_value]
    if when.path == _ARCHITECTURE:
        return searched_values if "transformer" in when.one_of else [base_value]
    return [*searched_values, base_value]
