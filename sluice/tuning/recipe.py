"""From the values a trial had, and when, to settings that train it again."""

from collections.abc import Sequence
from typing import Any

from sluice.training.settings import Change, may_change
from sluice.tuning.parameters import Params
from sluice.tuning.records import Step
from sluice.tuning.spaces import Setup


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
    training = base.with_params(step.params, where=where).training
    # PBT changes nothing else: a step in anything else would not be the trial that was run.
    fixed = [path for path in moved if not may_change(path, training)]
    assert not fixed, f"cannot change in mid-training: {sorted(fixed)}"
    values: dict[str, Any] = {}
    for path in moved:
        _, name, *argument = path.split(".")
        if argument:
            values.setdefault(name, {})[argument[0]] = getattr(training, name)[argument[0]]
        else:
            values[name] = float(getattr(training, name))
    return Change(from_epoch=step.from_epoch, **values)
