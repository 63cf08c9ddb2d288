"""Drift references that are stored with a version: training rows, predictions, losses, embeddings.

Training rows and held-out predictions are stored as drift references, which contain no rows;
held-out losses and embeddings are stored as tables.
"""

import io
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from pydantic import Field

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.base.settings import Record
from sluice.config.drift_settings import DriftSettings
from sluice.data.folds import Fold
from sluice.data.rows.protocol import gather
from sluice.data.table_bytes import read_table_bytes
from sluice.drift.embedding_reference import (
    build_embedding_reference,
    compares_embeddings,
    save_embedding_reference,
)
from sluice.drift.reference import OnProgress, build_reference
from sluice.drift.reference_file import save_reference
from sluice.drift.serving_samples import prediction_columns
from sluice.evaluation.outputs import (
    LoadMember,
    mean_output,
    member_outputs,
    own_member_selector,
    require_complete_seeds,
    select_members,
)
from sluice.evaluation.unseen_members import position_through, row_labels
from sluice.models.embedding import REFERENCE_ROLE
from sluice.training.members import Member
from sluice.training.prediction import PredictedRows, iter_outputs
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload

_ROLES = {
    "features": "drift features",
    "predictions": "drift predictions",
    "losses": "held-out losses",
}
"""Role of each reference among the artifacts of a version, by field of ``ReferenceArtifacts``."""


class ReferenceArtifacts(Record):
    """Artifact digests of a version's references; None for a reference that could not be built."""

    features: str | None = Field(description="Drift reference of the training rows.")
    predictions: str | None = Field(description="Drift reference of the held-out predictions.")
    losses: str | None = Field(
        description="Held-out losses of the deployed model (Parquet: row, loss)."
    )
    embedding: str | None = Field(
        None,
        exclude_if=lambda digest: digest is None,
        description="Drift reference of the embedding, for images and texts. If there are no "
        "embeddings, it contains the reason.",
    )
    lacking: tuple[str, ...] = Field(description="Reasons for missing references, in sentences.")
    left_out: tuple[str, ...] = Field(
        (),
        description="Sentences on the columns that drift.max_columns excludes from the comparison.",
    )

    @property
    def artifacts(self) -> dict[str, str]:
        """Digests by role, for the artifacts of a version's lineage."""
        roles = _ROLES | {"embedding": REFERENCE_ROLE}
        digests = {role: getattr(self, field) for field, role in roles.items()}
        return {role: digest for role, digest in digests.items() if digest is not None}

    @classmethod
    def of(cls, artifacts: dict[str, str]) -> "ReferenceArtifacts | None":
        """Return the references among a version's artifacts; None if the version has none."""
        if not artifacts.keys() & set(_ROLES.values()):
            return None
        digests = {field: artifacts.get(role) for field, role in _ROLES.items()}
        lacking = tuple(
            f"The version was created without {role}."
            for role, digest in zip(_ROLES.values(), digests.values(), strict=True)
            if digest is None
        )
        return cls(**digests, embedding=artifacts.get(REFERENCE_ROLE), lacking=lacking)


def store_references(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    members: Sequence[Member],
    load: LoadMember,
    settings: DriftSettings,
    *,
    store: ArtifactStore,
    seed: int,
    threads: int,
    on_progress: OnProgress,
) -> ReferenceArtifacts:
    """Build and store the references with which later windows are compared.

    Calling this again changes nothing. The reference rows are the training and validation rows of
    the last fold, whose members are deployed. The reference losses are the losses of the last fold.
    The reference predictions depend on the workload:

    - If clients receive only a part of the output: the responses for the test rows of the last
      fold.
    - If clients receive the whole output, and the workload keeps its outputs: the predictions of
      the members of all folds for their unseen rows, because one fold has too few rows.
    - Otherwise the version has no reference predictions.

    Args:
        workload: Workload of the version.
        frame: Feature frame of the training.
        folds: Folds of the training.
        members: One member for each seed and fold.
        load: Returns the network of a member.
        settings: Drift settings, stored with the references and used for later windows.
        store: Artifact store.
        seed: Seed of the threshold calibration.
        threads: Number of columns that are processed in parallel.
        on_progress: Receives one line for each progress step.

    Raises:
        ContractError: A seed lacks a fold, or has a fold that is not planned.

    Cost:
        5,000 rows of nine columns, 32 networks: 3 s.
    """
    last_fold_id = max(fold.fold_id for fold in folds)
    last_training_label = next(
        member.trained_through for member in members if member.fold_id == last_fold_id
    )
    training_rows = frame.iloc[: position_through(frame.index, last_training_label) + 1]
    on_progress(f"computing predictions of {pluralize(len(members), 'network')} on held-out rows")
    keeps_outputs = workload.keep_outputs and workload.serves_whole_output
    predict = _predict_held_out if keeps_outputs else _predict_held_out_in_chunks
    predictions, losses = predict(workload, frame, folds, members, load)
    lacking: list[str] = []
    left_out: list[str] = []

    def build_and_save(rows: pd.DataFrame, what: str) -> str | None:
        try:
            reference = build_reference(
                rows,
                settings,
                seed=seed,
                threads=threads,
                on_progress=lambda message: on_progress(f"{what}: {message}"),
            )
        except ContractError as error:  # too few rows or an empty column, which are no error here
            lacking.append(f"No reference of the {what}: {error.what}")
            return None
        if reference.omission:
            left_out.append(f"{what.capitalize()}: {reference.omission}")
        return save_reference(reference, store)

    embedding = None
    if settings.embedding is not None and compares_embeddings(workload, settings):
        reference = build_embedding_reference(
            workload,
            frame,
            folds,
            members,
            load,
            settings,
            max_rows=settings.embedding.max_rows,
            on_progress=on_progress,
        )
        if reference.problem:
            lacking.append(f"No reference of the embedding: {reference.problem}")
        embedding = save_embedding_reference(reference, store)
    if predictions is None:
        lacking.append(
            "No reference of the held-out predictions: the workload does not keep its outputs."
        )
    return ReferenceArtifacts(
        features=build_and_save(training_rows[list(workload.feature_columns)], "training rows"),
        predictions=None
        if predictions is None
        else build_and_save(predictions, "held-out predictions"),
        losses=_save_losses(losses, store),
        embedding=embedding,
        lacking=tuple(lacking),
        left_out=tuple(left_out),
    )


def _predict_held_out(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    members: Sequence[Member],
    load: LoadMember,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return mean predictions for all test rows, and losses for the test rows of the last fold."""
    last_fold_id = max(fold.fold_id for fold in folds)
    _, parts_S = member_outputs(workload, frame, folds, members, load)
    outputs, losses = [], pd.DataFrame()
    for parts in zip(*parts_S, strict=True):  # the same fold of all seeds
        output = torch.stack([part.output for part in parts]).mean(dim=0)
        outputs.append(output.double().reshape(len(output), -1).numpy())
        if parts[0].fold.fold_id == last_fold_id:
            examples = parts[0].examples
            losses = _loss_frame(frame, examples, workload.losses(output, examples.targets))
    output_NO = np.concatenate(outputs)
    return pd.DataFrame(output_NO, columns=list(prediction_columns(output_NO.shape[1]))), losses


def _predict_held_out_in_chunks(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    members: Sequence[Member],
    load: LoadMember,
) -> tuple[pd.DataFrame | None, pd.DataFrame]:
    """Return the mean responses and the losses on the test rows of the last fold.

    No output of a network is kept. The responses are None if clients receive the outputs unchanged,
    or if the workload is not served.
    """
    seeds = require_complete_seeds(folds, members)
    last_fold = max(folds, key=lambda fold: fold.fold_id)
    selected_members = select_members(
        [last_fold], seeds, own_member_selector(workload, frame, members)
    )
    examples = workload.examples(frame, last_fold.test)
    sources = [PredictedRows(load(member), examples.x) for member in selected_members.values()]
    losses, responses = [], []
    for chunk in iter_outputs(sources, examples.y):
        losses.append(workload.losses(mean_output(chunk.outputs), chunk.y))
        if workload.is_served and not workload.serves_whole_output:
            x = gather(examples.x, chunk.rows)
            served_outputs = [workload.served_output(output, x) for output in chunk.outputs]
            responses.append(mean_output(served_outputs).double().flatten(1).numpy())
    loss_frame = _loss_frame(frame, examples, torch.cat(losses))
    if not responses:
        return None, loss_frame
    output_NO = np.concatenate(responses)
    return pd.DataFrame(output_NO, columns=list(prediction_columns(output_NO.shape[1]))), loss_frame


def _loss_frame(frame: pd.DataFrame, examples: Examples, losses: torch.Tensor) -> pd.DataFrame:
    return pd.DataFrame(
        {"row": row_labels(frame.index)[examples.rows], "loss": losses.double().numpy()}
    )


def read_held_out_losses(digest: str, store: ArtifactStore) -> "pd.Series[float]":
    """Return the deployed model's losses on held-out rows, indexed by row label as text.

    Raises:
        IntegrityError: The artifact is missing, damaged, or too large for memory.
    """
    kinds = {"row": "O", "loss": "f"}
    frame = read_table_bytes(
        store.get(digest), what="The held-out losses of the version", kinds=kinds
    )
    return frame.set_index("row")["loss"]


def last_known_label(
    references: ReferenceArtifacts | None, members: Sequence[Member], store: ArtifactStore
) -> str:
    """Return the index label of the last row from which a version was created; later rows are new.

    This is the last held-out row, or the last training row for a version without held-out losses.

    Args:
        references: Stored references of the version.
        members: Deployed members, all of one fold.
        store: Artifact store with the losses.

    Raises:
        IntegrityError: The losses are missing or damaged.
    """
    if references is None or references.losses is None:
        return members[0].trained_through
    return str(read_held_out_losses(references.losses, store).index[-1])


def _save_losses(losses: pd.DataFrame, store: ArtifactStore) -> str:
    buffer = io.BytesIO()
    losses.to_parquet(buffer, index=False)
    return store.put(buffer.getvalue())
