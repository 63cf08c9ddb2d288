"""What a candidate is compared with: the version in production, or the workload's baseline."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from sluice.artifacts import ArtifactStore
from sluice.data.folds import Fold, RowRange
from sluice.errors import ContractError
from sluice.evaluation.production import row_labels
from sluice.evaluation.scoring import Scores, score_production
from sluice.models.settings import ModelSettings
from sluice.registry.lineage import Lineage
from sluice.training.weights import load_member
from sluice.workloads.load import load_workload
from sluice.workloads.workload import Workload


def score_version(
    lineage: Lineage,
    workload: Workload,
    raw: pd.DataFrame,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    store: ArtifactStore,
    *,
    window: str,
) -> Scores:
    """Score a registered version on the candidate's test rows, with the version's own features.

    The version may have been trained with other workload settings (a longer window, say). Its own
    workload then computes its features from the same raw rows, and the candidate's test rows are
    found again by their label.

    Args:
        lineage: Of the version; names its workload, model and members.
        workload: The candidate's.
        raw: Raw rows, as the candidate's features were computed from.
        frame: The candidate's feature frame.
        folds: The candidate's folds.
        store: Holds the version's weights.
        window: Digest of the candidate's window, which the scores are of.

    Raises:
        ContractError: The version predicts another target, or cannot be scored on these rows.
        IntegrityError: Its weights are missing or damaged.
    """
    config = lineage.resolved_config
    own = load_workload(
        str(config["workload"]),
        config["workload_settings"],
        where=f"{lineage.model}: settings of the version in production",
    )
    model = ModelSettings.model_validate(config["model"])
    if own.settings == workload.settings and type(own) is type(workload):
        own_frame, own_folds = frame, tuple(folds)
    else:
        own_frame = own.compute_features(raw)
        own_folds = tuple(_same_rows(fold, frame.index, own_frame.index) for fold in folds)
    for fold, own_fold in zip(folds, own_folds, strict=True):
        _require_same_target(workload, frame, fold, own, own_frame, own_fold)
    scores = score_production(
        own,
        own_frame,
        own_folds,
        lineage.members,
        lambda member: load_member(member, own, model, store),
        subject=lineage.candidate,
    )
    return replace(scores, losses=replace(scores.losses, window=window))


def _same_rows(fold: Fold, index: pd.Index, own: pd.Index) -> Fold:
    """Return ``fold`` with its test rows at the positions their labels have in ``own``."""
    wanted = index[fold.test.start : fold.test.stop]
    at = own.get_indexer(wanted)
    if (at < 0).any() or not np.array_equal(at, np.arange(at[0], at[0] + len(at))):
        missing = int((at < 0).sum())
        raise ContractError(
            f"Production must be scored on fold {fold.fold_id}'s {len(wanted)} test rows; its own "
            f"features lack {missing} of them.",
            cause="Its workload settings need more history, or drop other rows.",
            fix="Begin the first test window later.",
        )
    start = int(at[0])
    return fold.model_copy(update={"test": RowRange(start=start, stop=start + len(at))})


def _require_same_target(
    workload: Workload,
    frame: pd.DataFrame,
    fold: Fold,
    own: Workload,
    own_frame: pd.DataFrame,
    own_fold: Fold,
) -> None:
    ours, theirs = workload.examples(frame, fold.test), own.examples(own_frame, own_fold.test)
    same_rows = np.array_equal(
        row_labels(frame.index)[ours.rows], row_labels(own_frame.index)[theirs.rows]
    )
    if not same_rows or ours.y.shape != theirs.y.shape or not bool((ours.y == theirs.y).all()):
        raise ContractError(
            f"Production and candidate must predict the same target; on fold {fold.fold_id} their "
            "targets differ.",
            cause="The pipeline's target was changed after that version was promoted.",
            fix="Give the new target a pipeline (and so a model name) of its own.",
        )
