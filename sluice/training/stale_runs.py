"""Detects unfinished fold runs that will not be resumed because a setting was changed."""

from sluice.base.dict_diff import format_differences
from sluice.training.checkpoint import newest_subject
from sluice.training.fold_run_spec import FoldRunSpec, fold_run_folder, fold_run_subject


def changes_since_stale_run(spec: FoldRunSpec) -> tuple[str, ...]:
    """Return the settings that differ between a fold run and the unfinished run that it replaces.

    The digest of everything that determines the result of a fold run is the name of its folder. So
    a run with other settings never resumes from these checkpoints. The differences are reported, so
    that a user can restore a setting that was changed by mistake.

    Args:
        spec: The fold run that starts.

    Returns:
        One line per difference. Empty if this fold run already has a checkpoint, or if no
        unfinished run of the same workload, seed and fold exists.
    """
    subject = fold_run_subject(spec)
    if newest_subject(fold_run_folder(spec)) is not None:
        return ()
    for folder in sorted(spec.runs.glob("*/"), key=lambda path: -path.stat().st_mtime):
        if (folder / "result.json").exists():
            continue
        old_subject = newest_subject(folder)
        if old_subject and all(
            old_subject.get(name) == subject[name] for name in ("workload", "seed", "fold")
        ):
            return tuple(format_differences(dict(old_subject), subject))
    return ()
