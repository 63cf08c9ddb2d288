"""Which parameters are trained, at what share of the rate and with what decay."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sluice.base.errors import ContractError, SettingsError
from sluice.base.settings import nearest
from sluice.training.optimizers import build_optimizer, takes_decay
from sluice.training.settings import TrainSettings

ParameterGroups = Sequence[Mapping[str, Any]]
"""As ``Workload.parameter_groups`` returns them."""

_KEYS = ("params", "weight_decay", "rate_share")


def listed_groups(groups: ParameterGroups, settings: TrainSettings) -> list[dict[str, Any]]:
    """Return the groups with every key filled in and ``params`` as a list.

    Args:
        groups: As ``Workload.parameter_groups`` returns them; ``params`` may be an iterator.
        settings: The decay of groups without their own.

    Raises:
        ContractError: A group has an unknown key or no ``params``, a value is out of range, or
            all groups are empty.
    """
    listed = [_listed(group, index, settings) for index, group in enumerate(groups)]
    if not any(group["params"] for group in listed):
        raise ContractError(
            f"The parameter groups must hold a parameter, got {len(listed)} groups without one.",
            cause="Every parameter is frozen, or the names that the groups are made by match none.",
            fix="Correct what parameter_groups() returns.",
        )
    return listed


def make_optimizer(groups: ParameterGroups, settings: TrainSettings) -> torch.optim.Optimizer:
    """Return the optimizer that the settings name over the groups, at their peak rate.

    Args:
        groups: ``params`` and, where they differ, ``weight_decay`` and ``rate_share``, by which
            the scheduled rate is multiplied.
        settings: Optimizer and arguments, peak rate, and the decay of groups without their own.

    Raises:
        ContractError: As ``listed_groups``, or a parameter is given twice.
        SettingsError: As ``build_optimizer``, or a decay was set and the optimizer has none.
    """
    listed = listed_groups(groups, settings)
    given = [id(parameter) for group in listed for parameter in group["params"]]
    if len(given) != len(set(given)):
        raise ContractError(
            f"Every parameter must be in one group, {len(given) - len(set(given))} are in two.",
            cause="Two patterns of names match the same parameter, or a tied one was listed twice.",
            fix="Let the groups of parameter_groups() exclude each other.",
        )
    if not takes_decay(settings):
        _require_no_decay(listed, settings)
        for group in listed:
            del group["weight_decay"]
    optimizer = build_optimizer(listed, settings)
    set_rate(optimizer, settings.learning_rate)
    return optimizer


def set_decay(optimizer: torch.optim.Optimizer, decay: float) -> None:
    """Set the decay of every group that has none of its own, where the optimizer has a decay."""
    for group in optimizer.param_groups:
        if not group["own_decay"] and "weight_decay" in group:
            group["weight_decay"] = decay


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every group to its share of ``rate``."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate_share"]


def _require_no_decay(listed: Sequence[Mapping[str, Any]], settings: TrainSettings) -> None:
    """Refuse a decay that would be ignored; the default of the settings is no demand for one."""
    default = TrainSettings.model_fields["weight_decay"].default
    wanted = [settings.weight_decay, *(change.weight_decay for change in settings.changes)]
    wanted += [group["weight_decay"] for group in listed]
    refused = [decay for decay in wanted if decay not in (None, 0, default)]
    if refused:
        raise SettingsError(
            f"The optimizer '{settings.optimizer}' has no weight decay, and one of {refused[0]:g} "
            "is set.",
            fix="Set training.weight_decay to 0, take weight_decay out of training.changes and "
            "parameter_groups(), or name an optimizer that has it.",
        )


def _listed(group: Mapping[str, Any], index: int, settings: TrainSettings) -> dict[str, Any]:
    unknown = [str(key) for key in group if key not in (*_KEYS, "own_decay")]
    if unknown or "params" not in group:
        got = ", ".join(f"'{key}'" for key in group) or "no key"
        hint = nearest(unknown[0], list(_KEYS)) if unknown else ""
        raise ContractError(
            f"Parameter group {index} must have 'params' and may have 'weight_decay' and "
            f"'rate_share', got {got}.{hint}",
            cause="Other options of the optimizer come from the training settings.",
            fix="Correct the keys that parameter_groups() returns.",
        )
    params = group["params"]
    full = {
        "params": [params] if isinstance(params, Tensor) else list(params),
        "weight_decay": group.get("weight_decay", settings.weight_decay),
        # Groups that were listed before say so themselves.
        "own_decay": group.get("own_decay", "weight_decay" in group),
        "rate_share": group.get("rate_share", 1.0),
    }
    for key in ("weight_decay", "rate_share"):
        value = full[key]
        if not (isinstance(value, int | float) and 0 <= value < math.inf):
            raise ContractError(
                f"'{key}' of parameter group {index} must be a finite number that is not "
                f"negative, got {value!r}.",
                fix="Correct what parameter_groups() returns.",
            )
    return full
