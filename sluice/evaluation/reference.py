"""What a candidate is compared with: the version in production, or the workload's baseline."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import short
from sluice.base.errors import ContractError, OtherCode
from sluice.data.folds import Fold, RowRange
from sluice.data.table_bytes import read_table_bytes
from sluice.evaluation.outputs import LoadMember, predict
from sluice.evaluation.production import row_labels
from sluice.evaluation.scoring import ModelScores, score_production
from sluice.registry.lineage import Lineage
from sluice.registry.loading import read_stored_code, rebuild, removed_settings
from sluice.registry.own_code import CodeComparison, commit_of, compare_code
from sluice.registry.records import Version
from sluice.registry.stored_code import CodeChoice, stored_modules
from sluice.training.weights import load_member
from sluice.workloads.workload import Workload

REPRODUCED_RTOL = 1e-4
"""Largest relative change of a loss that other library versions explain."""

RECORDED_LOSSES = {"seed": "iu", "fold": "iu", "row": "O", "loss": "f"}
"""Columns of the losses that are kept with a version, for ``read_table_bytes``."""

_OWN_CODE = "--set production_code=stored, or production_code: stored in the pipeline's file"


def score_version(
    version: Version,
    workload: Workload,
    raw: pd.DataFrame,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    store: ArtifactStore,
    *,
    code: CodeChoice = "present",
) -> ModelScores:
    """Score a registered version on the candidate's test rows, with the version's own features.

    The version may have been trained with other workload settings (a longer window, say). Its own
    workload then computes its features from the same raw rows, and the candidate's test rows are
    found again by their label. The candidate's losses and metrics measure both.

    When the code here is not that of the version, its recorded losses must come out again first:
    otherwise it would be judged on features or by a network it never had.

    Args:
        version: Names its workload, model and members.
        workload: The candidate's.
        raw: Raw rows, as the candidate's features were computed from.
        frame: The candidate's feature frame.
        folds: The candidate's folds.
        store: Holds the version's weights.
        code: "stored" runs a version of other code in the modules that are stored with it: only
            for a person who asked for it.

    Raises:
        UntrustedCode: The version was imported, and names or brings code that was not trusted.
        OtherCode: The version has other code, and its losses cannot be compared, or its stored
            code was asked for and is missing.
        ContractError: The version predicts another target, cannot be scored on these rows, or no
            longer reproduces its own losses.
        IntegrityError: Its weights are missing or damaged.
    """
    lineage = version.lineage
    built = _build(version, store, code)
    own = built.workload
    if own.settings == workload.settings and type(own) is type(workload):
        own_frame, own_folds = frame, tuple(folds)
    else:
        own_frame = own.compute_features(raw)
        own_folds = tuple(_same_rows(fold, frame.index, own_frame.index) for fold in folds)
    for fold, own_fold in zip(folds, own_folds, strict=True):
        _require_same_target(workload, frame, fold, own, own_frame, own_fold)
    note = "" if built.is_unchanged else _note(lineage, built, own_frame, store)
    scores = score_production(
        own,
        own_frame,
        own_folds,
        lineage.members,
        built.load,
        subject=lineage.candidate,
        judge=(workload, frame, folds),
    )
    return replace(scores, note=note)


def require_scorable(
    version: Version,
    workload: Workload,
    frame: pd.DataFrame,
    store: ArtifactStore,
    *,
    code: CodeChoice,
) -> None:
    """Refuse a version that ``score_version`` would refuse for its code, before a training.

    Args:
        version: The version.
        workload: The candidate's.
        frame: The candidate's feature frame. Where the version has other features, that its losses
            come out again is left to the evaluation.
        store: Holds the version's weights, losses and code.
        code: As for ``score_version``.

    Raises:
        OtherCode, ContractError, IntegrityError: As ``score_version``.
    """
    built = _build(version, store, code)
    own = built.workload
    has_same_features = own.settings == workload.settings and type(own) is type(workload)
    if has_same_features and not built.is_unchanged:
        _note(version.lineage, built, frame, store)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Built:
    """A version's workload and networks, by the code that was chosen."""

    workload: Workload
    load: LoadMember
    comparison: CodeComparison | None
    """None when the code here does not even import."""

    is_stored: bool = False

    @property
    def is_unchanged(self) -> bool:
        return self.comparison is not None and self.comparison.before == self.comparison.now


def _build(version: Version, store: ArtifactStore, code: CodeChoice) -> _Built:
    lineage, comparison = version.lineage, None
    try:
        own, model = rebuild(version)
        comparison = compare_code(lineage, own, model)
    except ContractError as error:
        if code == "present":
            raise ContractError(
                "The version in production cannot be built from its recorded settings: "
                f"{error.what}",
                cause="The workload or its settings were renamed after it was promoted.",
                fix="Keep the old names working, or give the new workload a pipeline of its own "
                f"name, or score the version with its own code: {_OWN_CODE}.",
            ) from error
    else:
        _require_comparable_rows(version)
    if code == "present" or (comparison is not None and comparison.outcome != "other"):
        return _Built(
            workload=own,
            load=lambda member: load_member(member, own, model, store),
            comparison=comparison,
        )
    with stored_modules(read_stored_code(_name(lineage), version, store)):
        own, model = rebuild(version)
        _require_comparable_rows(version)
        networks = {m.weights: load_member(m, own, model, store) for m in lineage.members}
    return _Built(
        workload=own,
        load=lambda member: networks[member.weights],
        comparison=comparison,
        is_stored=True,
    )


def _require_comparable_rows(version: Version) -> None:
    """Refuse a version whose rows were in an order that no setting gives any more."""
    removed = [each for each in removed_settings(version) if each.orders_rows]
    if removed:
        raise ContractError(
            f"The version in production was trained with '{removed[0].name}', a setting that "
            "Sluice has no longer, so which of the test rows it has learned from is not known.",
            cause=removed[0].effect,
            fix="Give the pipeline another name: its first model is compared with the baseline. "
            f"The version goes on being served as {version.model}.",
        )


def _count_reproduced(
    lineage: Lineage, built: _Built, frame: pd.DataFrame, store: ArtifactStore
) -> int:
    """Return on how many rows that are still there the version makes its recorded losses.

    Raises:
        ContractError: On one of them it does not.
    """
    if "losses" not in lineage.artifacts:
        return 0
    recorded = read_table_bytes(
        store.get(lineage.artifacts["losses"]),
        what=f"{_name(lineage)}: its recorded losses",
        kinds=RECORDED_LOSSES,
    )
    labels = pd.Index(row_labels(frame.index))
    own = built.workload
    num_rows = 0
    for member in lineage.members:
        told = recorded[(recorded["seed"] == member.seed) & (recorded["fold"] == member.fold_id)]
        at = labels.get_indexer(pd.Index(told["row"]))
        if len(at) == 0 or (at < 0).any() or (np.diff(at) != 1).any():
            continue  # rows that have left the source say nothing about the code
        examples = own.examples(frame, RowRange(start=int(at[0]), stop=int(at[-1]) + 1))
        if not np.array_equal(examples.rows, at):
            continue  # nor do rows that it makes no example of
        losses = own.losses(predict(built.load(member), examples.x), examples.y).numpy()
        wrong = ~np.isclose(losses, told["loss"].to_numpy(), rtol=REPRODUCED_RTOL, atol=1e-9)
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            raise ContractError(
                f"The version in production must still make its recorded losses; seed "
                f"{member.seed}, fold {member.fold_id}, row {told['row'].iloc[first]} now has "
                f"{losses[first]:.6g}, recorded {told['loss'].iloc[first]:.6g} "
                f"({int(wrong.sum())} of {wrong.size} rows differ).{_code(built)}",
                cause="Its features or losses are computed by other code, or from revised rows, "
                "than when it was trained: a comparison would be unfair to it.",
                fix="Restore the rows and packages of that time, or give the changed workload "
                "another pipeline name."
                if built.is_stored
                else f"Score it with its own code: {_OWN_CODE}; or restore that code "
                f"({commit_of(lineage)}); or give the changed workload another pipeline name.",
            )
        num_rows += wrong.size
    return num_rows


def _note(lineage: Lineage, built: _Built, frame: pd.DataFrame, store: ArtifactStore) -> str:
    """Return what there is to know about the code of the scores.

    Raises:
        OtherCode: The version has other code, and no row is left to see whether that matters.
        ContractError: The version does not make its recorded losses.
    """
    who = _name(lineage)
    num_rows = _count_reproduced(lineage, built, frame, store)
    if built.is_stored:
        return f"{who} was scored with the code that is stored with it.{_code(built)}"
    assert built.comparison is not None, "code that does not import was refused"
    if num_rows:
        return (
            f"{who} still makes its recorded losses on {num_rows:,} rows, so it was scored with "
            f"the code here.{_code(built)}"
        )
    if built.comparison.outcome == "other":
        raise OtherCode(
            f"{who} must be scored with the code that it was trained with, and no row of its "
            f"recorded losses is left to show that the code here makes them.{_code(built)}",
            cause="Another network or other features would be judged in its place.",
            fix=f"Score it with its own code: {_OWN_CODE}; or restore that code "
            f"({commit_of(lineage)}).",
        )
    return (
        f"{built.comparison.warning(who)} No row of its recorded losses is left to show that the "
        "code here makes them."
    ).strip()


def _code(built: _Built) -> str:
    """Return the digests and what differs as a sentence that follows another one."""
    if built.comparison is None:
        return " The code here does not import its workload or network."
    both = (*built.comparison.differences, *built.comparison.others)
    if not both:
        return ""
    digests = f"{short(built.comparison.before)}; here {short(built.comparison.now)}"
    return f" Its code was another one ({digests}): {'; '.join(both)}."


def _name(lineage: Lineage) -> str:
    return f"The version of {lineage.model} with candidate {short(lineage.candidate)}"


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
