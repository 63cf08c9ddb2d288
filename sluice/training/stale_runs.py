"""Detects unfinished fold runs that will not be resumed because a setting was changed."""

from sluice.base.dict_diff import format_differences
from sluice.training.checkpoint import newest_subject
from sluice.training.fold_run_spec import FoldRunSpec, fold_run_folder, fold_run_subject


def changes_since_stale_run(spec: FoldRunSpec) -> tuple[str, ...]:
    """Return the settings that differ between a fold run and the unfinished run that it replaces.

    The folder of a fold run is named by the digest of everything that determines its result, so a
    run with other settings never resumes from its checkpoints. The differences are reported so that
    a user can restore a setting that was changed by mistake.

    Args:
        spec: The fold run that starts.

    Returns:
        One line per difference. Empty if this fold run already has a checkpoint of its own, or if
        there is no unfinished run of the same workload, seed and fold.
    """
    subject = fold_run_subject(spec)
    if newest_subject(fold_run_folder(spec)) is not None:
        return ()
    for folder in sorted(spec.runs.glob("*/"), key=lambda path: -path.stat().st_mtime):
        if (folder / "result.json").exists():
            continue
        other = newest_subject(folder)
        if other and all(other.get(name) == subject[name] for name in ("workload", "seed", "fold")):
            return tuple(format_differences(dict(other), subject))
    return ()
