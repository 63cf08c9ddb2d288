"""Detects unfinished fold runs that a changed setting replaces."""

from sluice.base.dict_diff import format_differences
from sluice.training.checkpoint import newest_subject
from sluice.training.fold_run import FoldRunSpec, fold_run_folder, fold_run_subject


def changes_since_stale_run(spec: FoldRunSpec) -> tuple[str, ...]:
    """Return the settings that differ between a fold run and the unfinished run that it replaces.

    The folder of a fold run is named by the digest of everything that determines its bits, so a run
    with other settings never resumes from its checkpoints. The differences are reported so that a
    setting that was changed by mistake can be restored. Empty if the fold run itself was started,
    or its seed and fold have no unfinished run.

    Args:
        spec: The fold run that starts.
    """
    subject = fold_run_subject(spec)
    own = fold_run_folder(spec)
    if newest_subject(own) is not None:
        return ()
    for folder in sorted(spec.runs.glob("*/"), key=lambda path: -path.stat().st_mtime):
        if (folder / "result.json").exists():
            continue
        other = newest_subject(folder)
        if other and all(other.get(role) == subject[role] for role in ("workload", "seed", "fold")):
            return tuple(format_differences(dict(other), subject))
    return ()
