"""Converts the schedule of a trial to settings that repeat its training."""

from collections.abc import Sequence
from typing import Any

import yaml

from sluice.training.settings import TrainingChange, may_change
from sluice.tuning.parameters import Params
from sluice.tuning.records import ScheduleStep
from sluice.tuning.spaces import TrialSettings

NO_SEARCH_NOTE = (
    "A setting that changes during training cannot be searched at the same time: with these "
    "lines, the file must not contain 'search' or 'space'."
)
"""Note for users who write a schedule into a pipeline's file."""


def changed_settings(base: TrialSettings, found: TrialSettings) -> dict[str, dict[str, Any]]:
    """Return the settings that a search changed, in the form of a pipeline's file."""
    changed: dict[str, dict[str, Any]] = {}
    for group in ("model", "training"):
        own, new = getattr(base, group), getattr(found, group)
        # Null values are omitted: no search produces them, and a change contains only changed
        # values.
        written = new.model_dump(mode="json", exclude_none=True)
        parts = {
            # A default that is omitted from a dump may still differ from the file.
            name: written.get(name, getattr(new, name))
            for name in type(new).model_fields
            if getattr(new, name) not in (None, getattr(own, name))
        }
        if parts:
            changed[group] = parts
    settings = {
        name: value
        for name, value in found.workload_settings.items()
        if value != base.workload_settings.get(name)
    }
    return changed | ({"workload_settings": settings} if settings else {})


def settings_yaml(settings: dict[str, dict[str, Any]]) -> str:
    """Return settings as YAML of a pipeline's file, with lines short enough for any terminal."""
    return yaml.safe_dump(settings, sort_keys=False, default_flow_style=False)


def settings_from_schedule(
    base: TrialSettings, schedule: Sequence[ScheduleStep], *, where: str
) -> TrialSettings:
    """Return settings with which a training from the start reproduces the trial.

    The values of the first step are settings; later changes are in ``training.changes``.

    Args:
        base: Settings of everything that is not searched.
        schedule: The trial's values from the first epoch on.
        where: Source of the values, for the message.

    Raises:
        SettingsError: The settings classes refuse a value.
    """
    first, *later = schedule
    setup = base.with_params(first.params, where=where)
    before, changes = first.params, {c.from_epoch: c for c in setup.training.changes}
    for step in later:
        change = _change(base, before, step, where=where)
        if change is not None:
            same = changes.get(step.from_epoch)
            changes[step.from_epoch] = same.merged(change) if same else change
        before = step.params
    ordered = tuple(changes[epoch] for epoch in sorted(changes))
    training = setup.training.model_copy(update={"changes": ordered})
    return setup.model_copy(update={"training": training})


def _change(
    base: TrialSettings, before: Params, step: ScheduleStep, *, where: str
) -> TrainingChange | None:
    """Return the changes of a step, or None without changes."""
    moved = [path for path, value in step.params.items() if value != before.get(path)]
    if not moved:
        return None
    setup = base.with_params(step.params, where=where)
    training, model = setup.training, setup.model
    # PBT changes no other settings: a change of another one could not have been run.
    fixed = [path for path in moved if not may_change(path, training, model.architecture)]
    assert not fixed, f"cannot change during training: {sorted(fixed)}"
    values: dict[str, Any] = {}
    for path in moved:
        _, name, *argument = path.split(".")
        if path == "model.dropout":
            values[name] = model.dropout
        elif argument:
            values.setdefault(name, {})[argument[0]] = getattr(training, name)[argument[0]]
        else:
            values[name] = float(getattr(training, name))
    return TrainingChange(from_epoch=step.from_epoch, **values)
