"""Scores the reference of a comparison: a registered version, with the version's own features."""

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
from sluice.evaluation.outputs import LoadMember, ensemble_losses
from sluice.evaluation.scoring import ModelScores, score_members
from sluice.evaluation.unseen_members import row_labels
from sluice.registry.code_comparison import CodeComparison, compare_code, describe_commit
from sluice.registry.lineage import Lineage
from sluice.registry.loading import read_stored_code, rebuild_workload, removed_settings
from sluice.registry.records import Version
from sluice.registry.stored_code import CodeSource, use_stored_modules
from sluice.training.weights import load_member
from sluice.workloads.workload import Workload

REPRODUCED_RTOL = 1e-4
"""A recomputed loss counts as reproduced if its relative difference from the recorded loss is at
most this number. The tolerance allows for other versions of libraries."""

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

    The version may have been trained with other workload settings, such as a longer window. In
    that case the version's own workload computes its features from the same raw rows, and the
    candidate's test rows are found in these features by their labels. Both arms are scored with
    the losses and metrics of the candidate's workload.

    If the code has changed since the training, the version must first reproduce its recorded
    losses, because the new code may compute other features or build another network. If the
    recorded losses cannot be compared, the outcome depends on the change: a version whose user
    modules have changed is rejected, and any other version is scored with a note.

    Args:
        version: Version with its workload, model and members.
        workload: Workload of the candidate.
        raw: Raw rows from which the candidate's features were computed.
        frame: Feature frame of the candidate.
        folds: Folds of the candidate.
        store: Artifact store with the version's weights.
        code: With "stored", a version whose code differs from the current code is scored with the
            modules that are stored with it. Use this only on explicit request of a user.

    Raises:
        UntrustedCode: The version was imported, and refers to or contains untrusted code.
        CodeMismatch: User modules have changed since the training, and the recorded losses of the
            version cannot be compared; or its stored code was requested and is missing.
        ContractError: The version predicts another target, cannot be scored on these rows, or
            does not reproduce its recorded losses.
        IntegrityError: The weights of the version are missing or damaged.
    """
    lineage = version.lineage
    built_version = _build_version(version, store, code)
    version_workload = built_version.workload
    if _has_same_features(version_workload, workload):
        version_frame, version_folds = frame, tuple(folds)
    else:
        version_frame = version_workload.compute_features(raw)
        version_folds = tuple(
            _fold_at_same_labels(fold, frame.index, version_frame.index, _version_name(lineage))
            for fold in folds
        )
    for fold, version_fold in zip(folds, version_folds, strict=True):
        _require_same_target(
            workload,
            frame,
            fold,
            version_workload,
            version_frame,
            version_fold,
            _version_name(lineage),
        )
    note = (
        ""
        if built_version.has_unchanged_code
        else _code_note(lineage, built_version, version_frame, store)
    )
    scores = score_members(
        version_workload,
        version_frame,
        version_folds,
        lineage.members,
        built_version.load,
        subject=lineage.candidate,
        scored_with=(workload, frame, folds),
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
        frame: Feature frame of the candidate. If the version has other features, its recorded
            losses are not checked here, but later by ``score_version``.
        store: Artifact store with the version's weights, losses and code.
        code: With "stored", a version whose user modules have changed is built from the modules
            that are stored with it.

    Raises:
        CodeMismatch, ContractError, IntegrityError, UntrustedCode: See ``score_version``.
    """
    built_version = _build_version(version, store, code)
    if (
        _has_same_features(built_version.workload, workload)
        and not built_version.has_unchanged_code
    ):
        _code_note(version.lineage, built_version, frame, store)


def _has_same_features(first: Workload, second: Workload) -> bool:
    return first.settings == second.settings and type(first) is type(second)


@dataclass(frozen=True, slots=True, kw_only=True)
class _BuiltVersion:
    """Workload and networks of a version, built with the selected code."""

    workload: Workload
    load: LoadMember
    comparison: CodeComparison | None
    """Comparison of the version's code with the current code; None if the version cannot be rebuilt
    with the current code."""

    uses_stored_code: bool = False
    """Whether the workload and the networks were built with the stored code."""

    @property
    def has_unchanged_code(self) -> bool:
        """Whether the current code equals that of the version's training."""
        return (
            self.comparison is not None
            and self.comparison.trained_digest == self.comparison.current_digest
        )


def _build_version(version: Version, store: ArtifactStore, code: CodeSource) -> _BuiltVersion:
    """Build a version with the current code.

    If ``code`` is "stored" and the user modules of the version have changed or cannot be imported,
    the version is built with its stored code.
    """
    lineage, comparison = version.lineage, None
    try:
        workload, model = rebuild_workload(version)
        comparison = compare_code(lineage, workload, model)
    except ContractError as error:
        if code == "current":
            raise ContractError(
                f"{_version_name(lineage)} cannot be rebuilt from its recorded settings: "
                f"{error.what}",
                cause="The workload or its settings were renamed after the version was trained.",
                fix="Keep the old names, or use another pipeline name for the new workload, or "
                f"score the version with its stored code: {_STORED_CODE_OPTION}.",
            ) from error
    else:
        _require_comparable_rows(version)
    if code == "current" or (comparison is not None and comparison.outcome != "other"):
        return _BuiltVersion(
            workload=workload,
            load=lambda member: load_member(member, workload, model, store),
            comparison=comparison,
        )
    with use_stored_modules(read_stored_code(_version_name(lineage), version, store)):
        workload, model = rebuild_workload(version)
        _require_comparable_rows(version)
        networks = {
            member.weights: load_member(member, workload, model, store)
            for member in lineage.members
        }
    return _BuiltVersion(
        workload=workload,
        load=lambda member: networks[member.weights],
        comparison=comparison,
        uses_stored_code=True,
    )


def _require_comparable_rows(version: Version) -> None:
    """Raise an error for a version whose row order can no longer be reproduced."""
    row_order_settings = [
        setting for setting in removed_settings(version) if setting.affects_row_order
    ]
    if row_order_settings:
        raise ContractError(
            f"{_version_name(version.lineage)} was trained with '{row_order_settings[0].name}', a "
            "setting that Sluice no longer supports. It is unknown which test rows the version was "
            "trained on.",
            cause=row_order_settings[0].effect,
            fix="Use another pipeline name; its first model is compared with the baseline. The "
            f"version is still served as {version.model}.",
        )


def _count_reproduced_losses(
    lineage: Lineage, built_version: _BuiltVersion, frame: pd.DataFrame, store: ArtifactStore
) -> int:
    """Return the number of recorded losses that the version was checked to reproduce.

    Raises:
        ContractError: A loss differs from the recorded one.
    """
    if "losses" not in lineage.artifacts:
        return 0
    recorded_losses = read_table_bytes(
        store.get(lineage.artifacts["losses"]),
        what=f"{_version_name(lineage)}: its recorded losses",
        kinds=RECORDED_LOSSES,
    )
    labels = pd.Index(row_labels(frame.index))
    workload = built_version.workload
    num_losses = 0
    for member in lineage.members:
        recorded_rows = recorded_losses[
            (recorded_losses["seed"] == member.seed) & (recorded_losses["fold"] == member.fold_id)
        ]
        positions = labels.get_indexer(pd.Index(recorded_rows["row"]))
        if len(positions) == 0 or (positions < 0).any() or (np.diff(positions) != 1).any():
            continue  # rows were removed from the source, or inserted between these rows
        row_range = RowRange(start=int(positions[0]), stop=int(positions[-1]) + 1)
        examples = workload.examples(frame, row_range)
        if not np.array_equal(examples.rows, positions):
            continue  # some rows no longer have an example
        losses = ensemble_losses(workload, [built_version.load(member)], examples).numpy()
        is_different = ~np.isclose(
            losses, recorded_rows["loss"].to_numpy(), rtol=REPRODUCED_RTOL, atol=1e-9
        )
        if is_different.any():
            first_different = int(np.flatnonzero(is_different)[0])
            recorded_row = recorded_rows.iloc[first_different]
            raise ContractError(
                f"{_version_name(lineage)} does not reproduce its recorded losses: seed "
                f"{member.seed}, fold {member.fold_id}, row {recorded_row['row']} has "
                f"{losses[first_different]:.6g}, recorded {recorded_row['loss']:.6g} "
                f"({int(is_different.sum())} of {is_different.size} rows differ)."
                f"{_code_sentence(built_version)}",
                cause="The code, the packages or the rows have changed since the version was "
                "trained, so the comparison would be biased against the version.",
                fix="Restore the rows and packages of its training, or use another pipeline name "
                "for the changed workload."
                if built_version.uses_stored_code
                else f"Score the version with its stored code: {_STORED_CODE_OPTION}; or restore "
                f"that code ({describe_commit(lineage)}); or use another pipeline name for the "
                "changed workload.",
            )
        num_losses += is_different.size
    return num_losses


def _code_note(
    lineage: Lineage, built_version: _BuiltVersion, frame: pd.DataFrame, store: ArtifactStore
) -> str:
    """Return a note on the code with which the version was scored.

    Raises:
        CodeMismatch: User modules have changed, and no recorded loss can be compared.
        ContractError: The version does not reproduce its recorded losses.
    """
    name = _version_name(lineage)
    num_reproduced = _count_reproduced_losses(lineage, built_version, frame, store)
    if built_version.uses_stored_code:
        return f"{name} was scored with its stored code.{_code_sentence(built_version)}"
    assert built_version.comparison is not None, (
        "_build_version rejects code that cannot be imported"
    )
    if num_reproduced:
        return (
            f"{name} reproduces all {num_reproduced:,} recorded losses that can be compared, so it "
            f"was scored with the current code.{_code_sentence(built_version)}"
        )
    if built_version.comparison.outcome == "other":
        raise CodeMismatch(
            f"{name} must be scored with the code of its training: its recorded losses cannot be "
            f"compared with those of the current code, because {_why_not_compared(lineage)}."
            f"{_code_sentence(built_version)}",
            cause="The current code may compute other features or build another network.",
            fix=f"Score the version with its stored code: {_STORED_CODE_OPTION}; or restore that "
            f"code ({describe_commit(lineage)}).",
        )
    return (
        f"{built_version.comparison.warning(name)} Its recorded losses cannot be compared, because "
        f"{_why_not_compared(lineage)}."
    ).strip()


def _why_not_compared(lineage: Lineage) -> str:
    if "losses" not in lineage.artifacts:
        return "none were stored with it"
    return "their rows are no longer available"


def _code_sentence(built_version: _BuiltVersion) -> str:
    """Return a sentence on the code differences, with a leading space; "" without differences."""
    if built_version.comparison is None:
        return " The current code cannot import its workload or network."
    differences = (
        *built_version.comparison.differences,
        *built_version.comparison.environment_differences,
    )
    if not differences:
        return ""
    trained_digest = short(built_version.comparison.trained_digest)
    current_digest = short(built_version.comparison.current_digest)
    digests = f"{trained_digest}, now {current_digest}"
    return f" Its code differs ({digests}): {'; '.join(differences)}."


def _version_name(lineage: Lineage) -> str:
    return f"The version of {lineage.model} with candidate {short(lineage.candidate)}"


def _fold_at_same_labels(fold: Fold, index: pd.Index, version_index: pd.Index, name: str) -> Fold:
    """Return ``fold`` with the positions of its test rows in the index of the version's frame.

    Args:
        fold: Fold of the candidate.
        index: Row labels of the candidate's frame.
        version_index: Row labels of the version's frame.
        name: Name of the version, for the message.
    """
    labels = index[fold.test.start : fold.test.stop]
    positions = version_index.get_indexer(labels)
    consecutive_positions = np.arange(positions[0], positions[0] + len(positions))
    if (positions < 0).any() or not np.array_equal(positions, consecutive_positions):
        num_missing = int((positions < 0).sum())
        problem = f"lack {num_missing} of them" if num_missing else "have other rows between them"
        raise ContractError(
            f"{name} must be scored on the {len(labels)} test rows of fold {fold.fold_id}, but its "
            f"own features {problem}.",
            cause="The workload settings of the version need more history, or drop other rows.",
            fix="Start the first test window later.",
        )
    start = int(positions[0])
    return fold.model_copy(update={"test": RowRange(start=start, stop=start + len(positions))})


def _require_same_target(
    workload: Workload,
    frame: pd.DataFrame,
    fold: Fold,
    version_workload: Workload,
    version_frame: pd.DataFrame,
    version_fold: Fold,
    name: str,
) -> None:
    """Raise an error if the two workloads have different test rows or targets in a fold."""
    examples = workload.examples(frame, fold.test)
    version_examples = version_workload.examples(version_frame, version_fold.test)
    has_same_rows = np.array_equal(
        row_labels(frame.index)[examples.rows],
        row_labels(version_frame.index)[version_examples.rows],
    )
    if not has_same_rows or not torch.equal(examples.targets, version_examples.targets):
        raise ContractError(
            f"{name} must predict the target of the current workload, but the targets differ on "
            f"fold {fold.fold_id}.",
            cause="The pipeline's target was changed after the version was trained.",
            fix="Use another pipeline name (which is also the model name) for the new target.",
        )
