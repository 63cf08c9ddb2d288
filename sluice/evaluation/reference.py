"""What a candidate is compared with: the version in production, or the workload's baseline."""

import io
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from torch import nn

from sluice.artifacts import ArtifactStore
from sluice.data.folds import Fold, RowRange
from sluice.errors import ContractError
from sluice.evaluation.outputs import predict
from sluice.evaluation.production import row_labels
from sluice.evaluation.scoring import ModelScores, score_production
from sluice.models.settings import ModelSettings
from sluice.registry.lineage import Lineage
from sluice.registry.loading import rebuild
from sluice.training.members import Member
from sluice.training.weights import load_member
from sluice.workloads.workload import Workload

REPRODUCED_RTOL = 1e-4
"""Largest relative change of a loss that other library versions explain."""


def score_version(
    lineage: Lineage,
    workload: Workload,
    raw: pd.DataFrame,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    store: ArtifactStore,
    *,
    window: str,
    code: str,
) -> ModelScores:
    """Score a registered version on the candidate's test rows, with the version's own features.

    The version may have been trained with other workload settings (a longer window, say). Its own
    workload then computes its features from the same raw rows, and the candidate's test rows are
    found again by their label. When the code has changed since the version was made, its recorded
    losses must come out again first: otherwise it would be judged on features it never saw.

    Args:
        lineage: Of the version; names its workload, model and members.
        workload: The candidate's.
        raw: Raw rows, as the candidate's features were computed from.
        frame: The candidate's feature frame.
        folds: The candidate's folds.
        store: Holds the version's weights.
        window: Digest of the candidate's window, which the scores are of.
        code: Digest of the present code.

    Raises:
        ContractError: The version predicts another target, cannot be scored on these rows, or no
            longer reproduces its own losses.
        IntegrityError: Its weights are missing or damaged.
    """
    own, model = _rebuild(lineage)
    if own.settings == workload.settings and type(own) is type(workload):
        own_frame, own_folds = frame, tuple(folds)
    else:
        own_frame = own.compute_features(raw)
        own_folds = tuple(_same_rows(fold, frame.index, own_frame.index) for fold in folds)
    for fold, own_fold in zip(folds, own_folds, strict=True):
        _require_same_target(workload, frame, fold, own, own_frame, own_fold)

    def load(member: Member) -> nn.Module:
        return load_member(member, own, model, store)

    if lineage.code != code:
        _require_reproduced(lineage, own, own_frame, load, store)
    scores = score_production(
        own, own_frame, own_folds, lineage.members, load, subject=lineage.candidate
    )
    return ModelScores(by_seed=scores.by_seed.on(window), deployed=scores.deployed.on(window))


def _rebuild(lineage: Lineage) -> tuple[Workload, ModelSettings]:
    try:
        return rebuild(lineage)
    except ContractError as error:
        raise ContractError(
            f"The version in production cannot be built from its recorded settings: {error.what}",
            cause="The workload or its settings were renamed after it was promoted.",
            fix="Keep the old names working, or give the new workload a pipeline of its own name.",
        ) from error


def _require_reproduced(
    lineage: Lineage,
    own: Workload,
    frame: pd.DataFrame,
    load: Callable[[Member], nn.Module],
    store: ArtifactStore,
) -> None:
    """Refuse a version whose recorded losses do not come out again on rows that are still there."""
    recorded = pd.read_parquet(io.BytesIO(store.get(lineage.artifacts["losses"])))
    labels = pd.Index(row_labels(frame.index))
    for member in lineage.members:
        told = recorded[(recorded["seed"] == member.seed) & (recorded["fold"] == member.fold_id)]
        at = labels.get_indexer(pd.Index(told["row"]))
        if (at < 0).any() or not np.array_equal(at, np.arange(at[0], at[0] + len(at))):
            continue  # rows that have left the source say nothing about the code
        examples = own.examples(frame, RowRange(start=int(at[0]), stop=int(at[-1]) + 1))
        losses = own.losses(predict(load(member), examples.x), examples.y).numpy()
        wrong = ~np.isclose(losses, told["loss"].to_numpy(), rtol=REPRODUCED_RTOL, atol=1e-9)
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            raise ContractError(
                f"The version in production must still make its recorded losses; seed "
                f"{member.seed}, fold {member.fold_id}, row {told['row'].iloc[first]} now has "
                f"{losses[first]:.6g}, recorded {told['loss'].iloc[first]:.6g} "
                f"({int(wrong.sum())} of {wrong.size} rows differ).",
                cause="Its features or losses are computed by other code, or from revised rows, "
                "than when it was trained: a comparison would be unfair to it.",
                fix="Give the changed workload another class or another pipeline name, so that the "
                "old one can still be computed.",
            )


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
