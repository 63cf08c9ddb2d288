"""Converts the hyperparameter values of a trial, which PBT changes over time, to settings.

A training with these settings repeats the trial.
"""

from collections.abc import Sequence
from typing import Any

import yaml

from sluice.training.settings import TrainingChange, may_change
from sluice.tuning.parameters import Params
from sluice.tuning.records import ScheduleStep
from sluice.tuning.spaces import TrialSettings, split_path

NO_SEARCH_NOTE = (
    "A setting that changes during training cannot be searched at the same time: with these "
    "lines, the file must not contain 'search' or 'space'."
)
"""Note for users who write values that change during training into a pipeline's file."""


def changed_settings(base: TrialSettings, result: TrialSettings) -> dict[str, dict[str, Any]]:
    """Return the settings that a search changed, in the form of a pipeline's file.

    Args:
        base: Settings before the search.
        result: Settings of the best trial.
    """
    changed_by_group: dict[str, dict[str, Any]] = {}
    for group in ("model", "training"):
        old_settings, new_settings = getattr(base, group), getattr(result, group)
        # Null values are omitted: no search produces them, and in an entry of ``training.changes``
        # null means that the setting keeps its value.
        dumped_values = new_settings.model_dump(mode="json", exclude_none=True)
        values = {
            # The dump omits some default values, which may differ from the values in the file.
            name: dumped_values.get(name, getattr(new_settings, name))
            for name in type(new_settings).model_fields
            if getattr(new_settings, name) not in (None, getattr(old_settings, name))
        }
        if values:
            changed_by_group[group] = values
    settings = {
        name: value
        for name, value in result.workload_settings.items()
        if value != base.workload_settings.get(name)
    }
    return changed_by_group | ({"workload_settings": settings} if settings else {})


def settings_yaml(settings: dict[str, dict[str, Any]]) -> str:
    """Return settings as YAML for a pipeline's file, with short lines for narrow terminals."""
    return yaml.safe_dump(settings, sort_keys=False, default_flow_style=False)


def settings_from_schedule(
    base: TrialSettings, schedule: Sequence[ScheduleStep], *, where: str
) -> TrialSettings:
    """Return settings with which a new training reproduces the trial.

    The values of the first step become settings, and later steps become ``training.changes``.

    Args:
        base: Settings before the values of a trial replace some of them.
        schedule: Values of the trial from the first epoch on.
        where: Source of the values, for error messages.

    Raises:
        SettingsError: The settings classes refuse a value.
    """
    first_step, *later_steps = schedule
    first_settings = base.with_params(first_step.params, where=where)
    previous_params = first_step.params
    changes = {change.from_epoch: change for change in first_settings.training.changes}
    for step in later_steps:
        change = _change_between(base, previous_params, step, where=where)
        if change is not None:
            existing_change = changes.get(step.from_epoch)
            changes[step.from_epoch] = (
                existing_change.merge_with(change) if existing_change else change
            )
        previous_params = step.params
    sorted_changes = tuple(changes[epoch] for epoch in sorted(changes))
    training = first_settings.training.model_copy(update={"changes": sorted_changes})
    return first_settings.model_copy(update={"training": training})


def _change_between(
    base: TrialSettings, previous_params: Params, step: ScheduleStep, *, where: str
) -> TrainingChange | None:
    """Return the change from the previous values to the values of a step; None if all are equal."""
    changed_paths = [
        path for path, value in step.params.items() if value != previous_params.get(path)
    ]
    if not changed_paths:
        return None
    step_settings = base.with_params(step.params, where=where)
    training, model = step_settings.training, step_settings.model
    # PBT changes only settings that may change during training.
    unchangeable_paths = [
        path for path in changed_paths if not may_change(path, training, model.architecture)
    ]
    assert not unchangeable_paths, f"cannot change during training: {sorted(unchangeable_paths)}"
    values: dict[str, Any] = {}
    for path in changed_paths:
        _, name, mapping_key = split_path(path)
        if path == "model.dropout":
            values[name] = model.dropout
        elif mapping_key:
            argument_name = mapping_key.partition(".")[0]
            values.setdefault(name, {})[argument_name] = getattr(training, name)[argument_name]
        else:
            values[name] = float(getattr(training, name))
    return TrainingChange(from_epoch=step.from_epoch, **values)
