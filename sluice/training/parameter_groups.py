"""Completes and checks parameter groups, and sets their learning rate and weight decay."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sluice.base.errors import ContractError, SettingsError
from sluice.base.pluralize import pluralize
from sluice.base.settings import suggest_nearest
from sluice.training.optimizers import build_optimizer, takes_weight_decay
from sluice.training.settings import TrainSettings

ParameterGroups = Sequence[Mapping[str, Any]]
"""Groups as returned by ``Workload.parameter_groups``."""

_ALLOWED_KEYS = ("params", "weight_decay", "rate_share")
"""Keys that a workload may set in a parameter group."""


def complete_groups(groups: ParameterGroups, settings: TrainSettings) -> list[dict[str, Any]]:
    """Return the groups with every key filled in and ``params`` as a list.

    Args:
        groups: As returned by ``Workload.parameter_groups``; ``params`` may be an iterator.
        settings: Settings with the weight decay of groups that set no weight decay.

    Raises:
        ContractError: A group has an unknown key or no ``params``, a value is out of range, or all
            groups are empty.
    """
    completed_groups = [
        _complete_group(group, index, settings) for index, group in enumerate(groups)
    ]
    if not any(group["params"] for group in completed_groups):
        raise ContractError(
            "The parameter groups must contain at least one parameter, got "
            f"{pluralize(len(completed_groups), 'empty group')}.",
            cause="Every parameter is frozen, or the name patterns of the groups match no "
            "parameter.",
            fix="Correct the groups that parameter_groups() returns.",
        )
    return completed_groups


def make_optimizer(groups: ParameterGroups, settings: TrainSettings) -> torch.optim.Optimizer:
    """Return the optimizer that the settings select, for the groups, at its peak learning rate.

    Args:
        groups: Groups with ``params`` and optionally ``weight_decay`` and ``rate_share``, a factor
            by which the scheduled learning rate is multiplied.
        settings: Optimizer, its arguments, peak learning rate, and the weight decay of groups that
            set no weight decay.

    Raises:
        ContractError: As for ``complete_groups``, or a parameter is in two groups.
        SettingsError: As for ``build_optimizer``, or a weight decay is set for an optimizer that
            does not support it.
    """
    completed_groups = complete_groups(groups, settings)
    ids = [id(parameter) for group in completed_groups for parameter in group["params"]]
    num_repeated = len(ids) - len(set(ids))
    if num_repeated:
        raise ContractError(
            "Every parameter must be in one group, got "
            f"{pluralize(num_repeated, 'repeated parameter')}.",
            cause="Two name patterns match the same parameter, or a tied parameter is listed "
            "twice.",
            fix="Make the groups of parameter_groups() disjoint.",
        )
    if not takes_weight_decay(settings):
        _require_no_decay(completed_groups, settings)
        for group in completed_groups:
            del group["weight_decay"]
    optimizer = build_optimizer(completed_groups, settings)
    set_learning_rate(optimizer, settings.learning_rate)
    return optimizer


def set_weight_decay(optimizer: torch.optim.Optimizer, decay: float) -> None:
    """Set the weight decay of every group for which the workload set no weight decay.

    Does nothing for an optimizer without weight decay.
    """
    for group in optimizer.param_groups:
        if not group["has_own_decay"] and "weight_decay" in group:
            group["weight_decay"] = decay


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every group to ``rate`` times the ``rate_share`` of the group."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate_share"]


def _require_no_decay(groups: Sequence[Mapping[str, Any]], settings: TrainSettings) -> None:
    """Raise if a weight decay would be ignored; the default of the settings is accepted."""
    default_decay = TrainSettings.model_fields["weight_decay"].default
    decays = [settings.weight_decay, *(change.weight_decay for change in settings.changes)]
    decays += [group["weight_decay"] for group in groups]
    ignored_decays = [decay for decay in decays if decay not in (None, 0, default_decay)]
    if ignored_decays:
        raise SettingsError(
            f"The optimizer '{settings.optimizer}' does not support weight decay, but a weight "
            f"decay of {ignored_decays[0]:g} is set.",
            fix="Set training.weight_decay to 0 and remove weight_decay from training.changes and "
            "parameter_groups(), or use an optimizer with weight decay.",
        )


def _complete_group(
    group: Mapping[str, Any], index: int, settings: TrainSettings
) -> dict[str, Any]:
    unknown_keys = [str(key) for key in group if key not in (*_ALLOWED_KEYS, "has_own_decay")]
    if unknown_keys or "params" not in group:
        key_names = ", ".join(f"'{key}'" for key in group) or "no key"
        hint = suggest_nearest(unknown_keys[0], list(_ALLOWED_KEYS)) if unknown_keys else ""
        raise ContractError(
            f"Parameter group {index} must have 'params' and may have 'weight_decay' and "
            f"'rate_share', got {key_names}.{hint}",
            cause="All other options of the optimizer come from the training settings.",
            fix="Correct the keys that parameter_groups() returns.",
        )
    params = group["params"]
    completed_group = {
        "params": [params] if isinstance(params, Tensor) else list(params),
        "weight_decay": group.get("weight_decay", settings.weight_decay),
        # A group that was completed before already has this key.
        "has_own_decay": group.get("has_own_decay", "weight_decay" in group),
        "rate_share": group.get("rate_share", 1.0),
    }
    for key in ("weight_decay", "rate_share"):
        value = completed_group[key]
        if not (isinstance(value, int | float) and 0 <= value < math.inf):
            raise ContractError(
                f"'{key}' of parameter group {index} must be a finite number of at least 0, got "
                f"{value!r}.",
                fix=f"Correct '{key}' in the groups that parameter_groups() returns.",
            )
    return completed_group
