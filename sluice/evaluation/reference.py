"""Scores the reference of a comparison: a registered version, with its own features and code."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import short
from sluice.base.errors import CodeMismatch, ContractError
from sluice.data.folds import Fold, RowRange
from sluice.data.table_bytes import read_table_bytes
from sluice.evaluation.outputs import LoadMember, predict
from sluice.evaluation.scoring import ModelScores, score_production
from sluice.evaluation.unseen_members import row_labels
from sluice.registry.code_comparison import CodeComparison, compare_code, describe_commit
from sluice.registry.lineage import Lineage
from sluice.registry.loading import read_stored_code, rebuild_workload, removed_settings
from sluice.registry.records import Version
from sluice.registry.stored_code import CodeSource, stored_modules
from sluice.training.weights import load_member
from sluice.workloads.workload import Workload

REPRODUCED_RTOL = 1e-4
"""Relative tolerance for reproduced losses, which allows for other library versions."""

RECORDED_LOSSES = {"seed": "iu", "fold": "iu", "row": "O", "loss": "f"}
"""Columns of the losses that are stored with a version, for ``read_table_bytes``."""

_STORED_CODE_OPTION = (
    "--set production_code=stored, or production_code: stored in the pipeline's YAML"
)


def score_version(
    version: Version,
    workload: Workload,
    raw: pd.DataFrame,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    store: ArtifactStore,
    *,
    code: CodeSource = "current",
) -> ModelScores:
    """Score a registered version on the candidate's test rows, with the version's own features.

    The version may have been trained with other workload settings, such as a longer window. Its
    own workload then computes its features from the same raw rows, and the candidate's test rows
    are located by their labels. Both arms are scored with the candidate's losses and metrics.

    If the current code differs from that of the version, the version must first reproduce its
    recorded losses. Otherwise it might be scored with other features or another network.

    Args:
        version: Version with its workload, model and members.
        workload: Workload of the candidate.
        raw: Raw rows from which the candidate's features were computed.
        frame: Feature frame of the candidate.
        folds: Folds of the candidate.
        store: Artifact store with the version's weights.
        code: "stored" runs a version with other code in the modules that are stored with it; only
            on explicit request of a user.

    Raises:
        UntrustedCode: The version was imported, and refers to or contains untrusted code.
        CodeMismatch: The version has other code, and its losses cannot be compared, or its stored
            code was requested and is missing.
        ContractError: The version predicts another target, cannot be scored on these rows, or
            does not reproduce its recorded losses.
        IntegrityError: Its weights are missing or damaged.
    """
    lineage = version.lineage
    built = _build(version, store, code)
    own = built.workload
    if own.settings == workload.settings and type(own) is type(workload):
        own_frame, own_folds = frame, tuple(folds)
    else:
        own_frame = own.compute_features(raw)
        own_folds = tuple(
            _fold_at_same_labels(fold, frame.index, own_frame.index) for fold in folds
        )
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
        measured_by=(workload, frame, folds),
    )
    return replace(scores, note=note)


def require_scorable(
    version: Version,
    workload: Workload,
    frame: pd.DataFrame,
    store: ArtifactStore,
    *,
    code: CodeSource,
) -> None:
    """Raise the errors of ``score_version`` that concern the code, before a training starts.

    Args:
        version: Registered version.
        workload: Workload of the candidate.
        frame: Feature frame of the candidate. If the version has other features, the evaluation
            checks its recorded losses.
        store: Artifact store with the version's weights, losses and code.
        code: As for ``score_version``.

    Raises:
        CodeMismatch, ContractError, IntegrityError: See ``score_version``.
    """
    built = _build(version, store, code)
    own = built.workload
    has_same_features = own.settings == workload.settings and type(own) is type(workload)
    if has_same_features and not built.is_unchanged:
        _note(version.lineage, built, frame, store)


@dataclass(frozen=True, slots=True, kw_only=True)
class _BuiltVersion:
    """Workload and networks of a version, built with the selected code."""

    workload: Workload
    load: LoadMember
    comparison: CodeComparison | None
    """Comparison with the current code; None if that code cannot be imported."""

    is_stored: bool = False

    @property
    def is_unchanged(self) -> bool:
        return self.comparison is not None and self.comparison.before == self.comparison.now


def _build(version: Version, store: ArtifactStore, code: CodeSource) -> _BuiltVersion:
    lineage, comparison = version.lineage, None
    try:
        own, model = rebuild_workload(version)
        comparison = compare_code(lineage, own, model)
    except ContractError as error:
        if code == "current":
            raise ContractError(
                "The version in production cannot be rebuilt from its recorded settings: "
                f"{error.what}",
                cause="The workload or its settings were renamed after it was promoted.",
                fix="Keep the old names, or use another pipeline name for the new workload, or "
                f"score the version with its stored code: {_STORED_CODE_OPTION}.",
            ) from error
    else:
        _require_comparable_rows(version)
    if code == "current" or (comparison is not None and comparison.outcome != "other"):
        return _BuiltVersion(
            workload=own,
            load=lambda member: load_member(member, own, model, store),
            comparison=comparison,
        )
    with stored_modules(read_stored_code(_name(lineage), version, store)):
        own, model = rebuild_workload(version)
        _require_comparable_rows(version)
        networks = {m.weights: load_member(m, own, model, store) for m in lineage.members}
    return _BuiltVersion(
        workload=own,
        load=lambda member: networks[member.weights],
        comparison=comparison,
        is_stored=True,
    )


def _require_comparable_rows(version: Version) -> None:
    """Raise an error for a version whose row order can no longer be reproduced."""
    removed = [each for each in removed_settings(version) if each.affects_row_order]
    if removed:
        raise ContractError(
            f"The version in production was trained with '{removed[0].name}', a setting that "
            "Sluice no longer supports, so it is unknown which test rows it was trained on.",
            cause=removed[0].effect,
            fix="Use another pipeline name; its first model is compared with the baseline. The "
            f"version is still served as {version.model}.",
        )


def _count_reproduced(
    lineage: Lineage, built: _BuiltVersion, frame: pd.DataFrame, store: ArtifactStore
) -> int:
    """Return the number of available rows on which the version reproduces its recorded losses.

    Raises:
        ContractError: A loss differs from the recorded one.
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
        own_losses = recorded[
            (recorded["seed"] == member.seed) & (recorded["fold"] == member.fold_id)
        ]
        at = labels.get_indexer(pd.Index(own_losses["row"]))
        if len(at) == 0 or (at < 0).any() or (np.diff(at) != 1).any():
            continue  # rows that are no longer in the source cannot be compared
        examples = own.examples(frame, RowRange(start=int(at[0]), stop=int(at[-1]) + 1))
        if not np.array_equal(examples.rows, at):
            continue  # rows without an example cannot be compared either
        losses = own.losses(predict(built.load(member), examples.x), examples.targets).numpy()
        wrong = ~np.isclose(losses, own_losses["loss"].to_numpy(), rtol=REPRODUCED_RTOL, atol=1e-9)
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            raise ContractError(
                f"The version in production does not reproduce its recorded losses: seed "
                f"{member.seed}, fold {member.fold_id}, row {own_losses['row'].iloc[first]} has "
                f"{losses[first]:.6g}, recorded {own_losses['loss'].iloc[first]:.6g} "
                f"({int(wrong.sum())} of {wrong.size} rows differ).{_code_sentence(built)}",
                cause="The code, the packages or the rows have changed since its training, so the "
                "comparison would be biased against it.",
                fix="Restore the rows and packages of its training, or use another pipeline name "
                "for the changed workload."
                if built.is_stored
                else f"Score it with its stored code: {_STORED_CODE_OPTION}; or restore that code "
                f"({describe_commit(lineage)}); or use another pipeline name for the changed "
                "workload.",
            )
        num_rows += wrong.size
    return num_rows


def _note(lineage: Lineage, built: _BuiltVersion, frame: pd.DataFrame, store: ArtifactStore) -> str:
    """Return a note on the code with which the version was scored.

    Raises:
        CodeMismatch: The version has other code, and no recorded loss can be compared.
        ContractError: The version does not reproduce its recorded losses.
    """
    who = _name(lineage)
    num_rows = _count_reproduced(lineage, built, frame, store)
    if built.is_stored:
        return f"{who} was scored with its stored code.{_code_sentence(built)}"
    assert built.comparison is not None, "code that cannot be imported was rejected"
    if num_rows:
        return (
            f"{who} reproduces its recorded losses on {num_rows:,} rows, so it was scored with "
            f"the current code.{_code_sentence(built)}"
        )
    if built.comparison.outcome == "other":
        raise CodeMismatch(
            f"{who} must be scored with the code of its training: its recorded losses cannot be "
            "compared with those of the current code, because their rows are no longer available."
            f"{_code_sentence(built)}",
            cause="The current code may compute other features or build another network.",
            fix=f"Score it with its stored code: {_STORED_CODE_OPTION}; or restore that code "
            f"({describe_commit(lineage)}).",
        )
    return (
        f"{built.comparison.warning(who)} Its recorded losses cannot be compared, because their "
        "rows are no longer available."
    ).strip()


def _code_sentence(built: _BuiltVersion) -> str:
    """Return a sentence on the code differences, with a leading space; "" without differences."""
    if built.comparison is None:
        return " The current code cannot import its workload or network."
    both = (*built.comparison.differences, *built.comparison.others)
    if not both:
        return ""
    digests = f"{short(built.comparison.before)}, now {short(built.comparison.now)}"
    return f" Its code differs ({digests}): {'; '.join(both)}."


def _name(lineage: Lineage) -> str:
    return f"The version of {lineage.model} with candidate {short(lineage.candidate)}"


def _fold_at_same_labels(fold: Fold, index: pd.Index, own: pd.Index) -> Fold:
    """Return ``fold`` with the positions of its test rows in the index ``own``."""
    wanted = index[fold.test.start : fold.test.stop]
    at = own.get_indexer(wanted)
    if (at < 0).any() or not np.array_equal(at, np.arange(at[0], at[0] + len(at))):
        missing = int((at < 0).sum())
        raise ContractError(
            f"The version in production must be scored on the {len(wanted)} test rows of fold "
            f"{fold.fold_id}; its own features lack {missing} of them.",
            cause="Its workload settings need more history, or drop other rows.",
            fix="Start the first test window later.",
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
    if not same_rows or not torch.equal(ours.targets, theirs.targets):
        raise ContractError(
            f"Production and candidate must predict the same target; their targets differ on fold "
            f"{fold.fold_id}.",
            cause="The pipeline's target was changed after that version was promoted.",
            fix="Use another pipeline name (which is also the model name) for the new target.",
        )
