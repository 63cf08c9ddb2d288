"""From the values a trial had, and when, to settings that train it again, as a file has them."""

from collections.abc import Sequence
from typing import Any

import yaml

from sluice.training.settings import Change, may_change
from sluice.tuning.parameters import Params
from sluice.tuning.records import Step
from sluice.tuning.spaces import Setup

WITHOUT_SEARCH = (
    "What changes in mid-training cannot be searched at the same time: with these lines in it, the "
    "file must have no 'search' and no 'space'."
)
"""What a person must know who writes a schedule into a pipeline's file."""


def changed_settings(base: Setup, found: Setup) -> dict[str, dict[str, Any]]:
    """Return the settings that a search changed, as they are written in a pipeline's file."""
    changed: dict[str, dict[str, Any]] = {}
    for group in ("model", "training"):
        own, new = getattr(base, group), getattr(found, group)
        # What is null is left out: no search finds it, and a change names what it changes alone.
        written = new.model_dump(mode="json", exclude_none=True)
        parts = {
            # A default that is left out of a dump may still differ from what the file says.
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
    """Return settings as lines of a pipeline's file, short enough for any terminal."""
    return yaml.safe_dump(settings, sort_keys=False, default_flow_style=False)


def setup_of(base: Setup, schedule: Sequence[Step], *, where: str) -> Setup:
    """Return settings with which training from the start ends where the trial ended.

    The first step's values are settings; what later steps changed stands in ``training.changes``.

    Args:
        base: The settings of all that is not searched.
        schedule: The trial's values from the first epoch on.
        where: Whose they are, for the message.

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


def _change(base: Setup, before: Params, step: Step, *, where: str) -> Change | None:
    """Return what a step changed, None when nothing."""
    moved = [path for path, value in step.params.items() if value != before.get(path)]
    if not moved:
        return None
    setup = base.with_params(step.params, where=where)
    training, model = setup.training, setup.model
    # PBT changes nothing else: a step in anything else would not be the trial that was run.
    fixed = [path for path in moved if not may_change(path, training, model.architecture)]
    assert not fixed, f"cannot change in mid-training: {sorted(fixed)}"
    values: dict[str, Any] = {}
    for path in moved:
        _, name, *argument = path.split(".")
        if path == "model.dropout":
            values[name] = model.dropout
        elif argument:
            values.setdefault(name, {})[argument[0]] = getattr(training, name)[argument[0]]
        else:
            values[name] = float(getattr(training, name))
    return Change(from_epoch=step.from_epoch, **values)
