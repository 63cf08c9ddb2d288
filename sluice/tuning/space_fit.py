"""Where a space and the settings it varies must suit each other (TUNE-2)."""

import math
from collections.abc import Mapping
from typing import Any

from sluice.base.errors import SettingsError
from sluice.base.settings import nearest
from sluice.models.settings import nearest_multiples
from sluice.tuning.parameters import Integers, Parameter, PowersOfTwo, ends, whole_values
from sluice.tuning.spaces import WORKLOAD, Setup, Space, require_field, split_path
from sluice.workloads.workload import WorkloadSettings

_KIND, _HIDDEN, _HEADS = "model.architecture", "model.hidden", "model.heads"


def require_fit(space: Space, base: Setup) -> None:
    """Refuse a space of which some trials could not be trained, or not as they say.

    Args:
        space: What is searched.
        base: The settings of all else.

    Raises:
        SettingsError: Some width is no multiple of the attention heads, or a searched setting is
            overruled by ``training.changes``; the value and the nearest sound one are named.
    """
    _require_unchanged(space, base)
    if "transformer" in _possible(space, base, _KIND):
        _require_divisible(space, base)


def workload_names(space: Space) -> tuple[str, ...]:
    """Return the settings of the workload that a space names, in a path or in a condition."""
    named = [*space.parameters]
    named += [p.when.path for p in space.parameters.values() if p.when is not None]
    parts = [split_path(path) for path in named]
    return tuple(dict.fromkeys(name for group, name, _ in parts if group == WORKLOAD))


def require_workload_fit(
    space: Space, settings_type: type[WorkloadSettings], own: Mapping[str, Any], *, where: str
) -> None:
    """Refuse a space over settings that the workload does not have, or values it does not accept.

    Args:
        space: What is searched.
        settings_type: The settings class of the workload.
        own: The settings of the workload as they are written.
        where: What they were read from, for the message.

    Raises:
        SettingsError: A setting is unknown (the nearest one is named), or a value is refused.
    """
    known = [name for name in settings_type.model_fields if name != "folds"]
    for name in workload_names(space):
        if name not in known:
            raise SettingsError(
                f"'{WORKLOAD}.{name}' is not a setting of the workload.{nearest(name, known)}",
                fix=f"Name one of: {', '.join(known)}.",
            )
    for path, parameter in space.parameters.items():
        group, name, _ = split_path(path)
        if group != WORKLOAD:
            continue
        for value in ends(parameter):
            require_field(settings_type, name, value, path=path, value=value)
    settings_type.parse(dict(own), where=where)


def _require_unchanged(space: Space, base: Setup) -> None:
    for change in base.training.changes:
        for path in change.paths:
            # A number of a list has the list's path and an index.
            if any(each == path or each.startswith(f"{path}.") for each in space.parameters):
                raise SettingsError(
                    f"'{path}' cannot be searched while training.changes sets it after "
                    f"epoch {change.from_epoch}: the value of the trial would end there.",
                    fix="Take it out of training.changes, or write a space without it.",
                )


def _require_divisible(space: Space, base: Setup) -> None:
    all_heads = sorted({int(heads) for heads in _possible(space, base, _HEADS)})
    step = math.lcm(*all_heads)
    for width in _possible(space, base, _HIDDEN):
        if int(width) % step:
            raise _indivisible(int(width), all_heads, step, space.parameters.get(_HIDDEN))


def _indivisible(
    width: int, all_heads: list[int], step: int, parameter: Parameter | None
) -> SettingsError:
    heads = ", ".join(map(str, all_heads))
    several = f", that is of {step} for heads {heads}" if len(all_heads) > 1 else f" {step}"
    near = nearest_multiples(width, step)
    if isinstance(parameter, Integers):
        sound = nearest_multiples(parameter.multiple_of, step)
        fix = f"Set multiple_of of model.hidden to {sound}, with low and high to match."
    elif isinstance(parameter, PowersOfTwo):
        fix = f"Search model.hidden as integers with multiple_of {step}, low and high to match."
    else:
        fix = f"Set model.hidden to {near} instead of {width}."
    return SettingsError(
        f"'{_HIDDEN}' must be a multiple of the attention heads{several} for the architecture "
        f"'transformer', and the space holds {width}.",
        cause="The width is divided among the heads.",
        fix=fix,
    )


def _possible(space: Space, base: Setup, path: str) -> list[Any]:
    """Return the values a trial can have, under the condition that it is a transformer."""
    fixed = base.value(path)
    parameter = space.parameters.get(path)
    if parameter is None:
        return [fixed]
    when, searched = parameter.when, list(whole_values(parameter))
    if when is None or path == _KIND:
        return searched if when is None else [*searched, fixed]
    if when.path == _KIND:
        return searched if "transformer" in when.one_of else [fixed]
    return [*searched, fixed]
