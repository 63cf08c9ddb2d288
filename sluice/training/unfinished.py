"""Trainings that were stopped and left behind because a setting changed since."""

from sluice.base.dict_diff import differences
from sluice.training.checkpoint import newest_subject
from sluice.training.unit import UnitSpec, describe, folder_of


def left_behind(spec: UnitSpec) -> tuple[str, ...]:
    """Return what differs between a unit that is to be fitted and an unfinished one it replaces.

    A unit's folder is named by all that determines its bits, so that other settings never go on
    from its checkpoints. That is said here: whoever changed a setting by mistake can put it back
    and go on. Empty when the unit itself was begun, or nothing of its seed and fold was left.

    Args:
        spec: The unit that is to be fitted.
    """
    subject = describe(spec)
    own = folder_of(spec)
    if newest_subject(own) is not None:
        return ()
    for folder in sorted(spec.runs.glob("*/"), key=lambda path: -path.stat().st_mtime):
        if (folder / "result.json").exists():
            continue
        other = newest_subject(folder)
        if other and all(other.get(role) == subject[role] for role in ("workload", "seed", "fold")):
            return tuple(differences(dict(other), subject))
    return ()
