"""What is kept with a version so that drift can be judged against what it learned from (ROLL-3).

Its training rows, its answers on held-out rows, and the losses of these: the first two as drift
references, which hold no rows.
"""

import io
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from pydantic import Field

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError
from sluice.base.settings import Record
from sluice.config.drift_settings import DriftSettings
from sluice.data.folds import Fold
from sluice.data.table_bytes import read_table_bytes
from sluice.drift.live import prediction_columns
from sluice.drift.reference import OnProgress, build_reference
from sluice.drift.reference_file import save_reference
from sluice.evaluation.outputs import LoadMember, member_outputs
from sluice.evaluation.production import position_through, row_labels
from sluice.training.members import Member
from sluice.workloads.workload import Workload

_ROLES = {
    "features": "drift features",
    "predictions": "drift predictions",
    "losses": "held-out losses",
}
"""Field: role among a version's artifacts."""


class KeptReference(Record):
    """Artifact digests of what is kept; None where it could not be made."""

    features: str | None = Field(description="Drift reference of the rows it learned from.")
    predictions: str | None = Field(description="Drift reference of its held-out answers.")
    losses: str | None = Field(description="Losses of the deployed model, Parquet: row, loss.")
    lacking: tuple[str, ...] = Field(description="Why something is not there, in sentences.")
    left_out: tuple[str, ...] = Field(
        (), description="What is not compared, of a table wider than max_columns, in sentences."
    )

    @property
    def artifacts(self) -> dict[str, str]:
        """The digests by role, for a version's lineage."""
        told = {role: getattr(self, field) for field, role in _ROLES.items()}
        return {role: digest for role, digest in told.items() if digest is not None}

    @classmethod
    def of(cls, artifacts: dict[str, str]) -> "KeptReference | None":
        """Return what a version's artifacts name; None when it is older than drift references."""
        if not artifacts.keys() & set(_ROLES.values()):
            return None
        told = {field: artifacts.get(role) for field, role in _ROLES.items()}
        lacking = [f"The version was made without {role}." for role in _ROLES.values()]
        absent = [digest is None for digest in told.values()]
        said = tuple(why for why, gone in zip(lacking, absent, strict=True) if gone)
        return cls(**told, lacking=said)


def keep_reference(
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
) -> KeptReference:
    """Build and store what later windows are judged against; the same again changes nothing.

    The rows are those that what is deployed, the last fold's members, was trained and validated
    on. The answers are those of every fold's members on rows they had not seen: one fold's alone
    would be too few of them. The losses are the last fold's.

    Args:
        workload: The version's.
        frame: Feature frame it was trained on.
        folds: Its folds.
        members: One for each seed and fold.
        load: Returns a member's network.
        settings: Kept with the references; windows are judged by them.
        store: Where they are kept.
        seed: Draws the windows that thresholds are calibrated on.
        threads: Columns worked on at a time.
        on_progress: Receives what is done so far, line by line.

    Raises:
        ContractError: A seed lacks a fold, or has one that is not planned.

    Cost:
        5,000 rows of nine columns, 32 networks: 3 s.
    """
    last = max(fold.fold_id for fold in folds)
    through = next(member.trained_through for member in members if member.fold_id == last)
    learned = frame.iloc[: position_through(frame.index, through) + 1]
    on_progress(f"computing answers of {len(members)} networks on held-out rows")
    _, parts_S = member_outputs(workload, frame, folds, members, load)
    answers, losses = [], pd.DataFrame()
    for same in zip(*parts_S, strict=True):
        output = torch.stack([part.output for part in same]).mean(dim=0)
        answers.append(output.double().reshape(len(output), -1).numpy())
        if same[0].fold.fold_id == last:
            examples = same[0].examples
            losses = pd.DataFrame(
                {
                    "row": row_labels(frame.index)[examples.rows],
                    "loss": workload.losses(output, examples.y).double().numpy(),
                }
            )
    answered = np.concatenate(answers)
    predictions = pd.DataFrame(answered, columns=list(prediction_columns(answered.shape[1])))
    lacking: list[str] = []
    left_out: list[str] = []

    def kept(rows: pd.DataFrame, what: str) -> str | None:
        try:
            reference = build_reference(
                rows,
                settings,
                seed=seed,
                threads=threads,
                on_progress=lambda done: on_progress(f"{what}: {done}"),
            )
        except ContractError as error:  # too short, or an empty column: a model may be so
            lacking.append(f"There is no reference of the {what}: {error.what}")
            return None
        if reference.omission:
            left_out.append(f"{what.capitalize()}: {reference.omission}")
        return save_reference(reference, store)

    return KeptReference(
        features=kept(learned[list(workload.feature_columns)], "rows it learned from"),
        predictions=kept(predictions, "held-out answers"),
        losses=_save(losses, store),
        lacking=tuple(lacking),
        left_out=tuple(left_out),
    )


def held_out_losses(digest: str, store: ArtifactStore) -> "pd.Series[float]":
    """Return the deployed model's losses on held-out rows, by the rows' labels as text.

    Raises:
        IntegrityError: They are missing or damaged, or would not fit into memory.
    """
    kinds = {"row": "O", "loss": "f"}
    frame = read_table_bytes(
        store.get(digest), what="The held-out losses of the version", kinds=kinds
    )
    return frame.set_index("row")["loss"]


def known_until(kept: KeptReference | None, members: Sequence[Member], store: ArtifactStore) -> str:
    """Return the label of the last row that a version was made with; rows after it are new.

    That is its last held-out row. A version without held-out losses is known to have its training
    rows only.

    Args:
        kept: What was kept with the version.
        members: The deployed ones, all of one fold.
        store: Holds the losses.

    Raises:
        IntegrityError: The losses are missing or damaged.
    """
    if kept is None or kept.losses is None:
        return members[0].trained_through
    return str(held_out_losses(kept.losses, store).index[-1])


def _save(losses: pd.DataFrame, store: ArtifactStore) -> str:
    buffer = io.BytesIO()
    losses.to_parquet(buffer, index=False)
    return store.put(buffer.getvalue())
