"""From the values a trial had, and when, to settings that train it again."""

from collections.abc import Sequence

from sluice.training.settings import CHANGING, Change
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
        moved = _moved(before, step.params)
        if moved:
            same = changes.get(step.from_epoch)
            values = (same.values if same else {}) | moved
            changes[step.from_epoch] = Change(from_epoch=step.from_epoch, **values)
        before = step.params
    ordered = tuple(changes[epoch] for epoch in sorted(changes))
    training = setup.training.model_copy(update={"changes": ordered})
    return setup.model_copy(update={"training": training})


def _moved(before: Params, after: Params) -> dict[str, float]:
    moved = {path: value for path, value in after.items() if value != before.get(path)}
    names = {path.removeprefix("training."): float(value) for path, value in moved.items()}
    # PBT changes nothing else: a step in anything else would not be the trial that was run.
    assert set(names) <= set(CHANGING), f"cannot change in mid-training: {sorted(moved)}"
    return names
