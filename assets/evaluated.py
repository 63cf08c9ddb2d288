"""What an evaluation found, as it is stored: tables by digest, read back for the decision."""

import io

import pandas as pd
from pydantic import Field

from sluice.base.artifacts import ArtifactStore
from sluice.base.settings import Record
from sluice.evaluation.guards import GuardEvidence
from sluice.evaluation.losses import LossTable
from sluice.evaluation.metric_table import MetricTable
from sluice.evaluation.suites.result import SuiteReport


class StoredTable(Record):
    """Losses of one model, as an artifact."""

    subject: str = Field(description="Digest of the model, or 'baseline'.")
    digest: str = Field(description="Artifact digest of the losses, Parquet.")

    @classmethod
    def put(cls, losses: LossTable, store: ArtifactStore) -> "StoredTable":
        """Store the losses; the same ones are stored once."""
        buffer = io.BytesIO()
        losses.to_frame().to_parquet(buffer, index=False)
        return cls(subject=losses.subject, digest=store.put(buffer.getvalue()))

    def get(self, store: ArtifactStore, *, window: str) -> LossTable:
        """Read the losses.

        Raises:
            IntegrityError: The artifact is missing or damaged.
        """
        frame = pd.read_parquet(io.BytesIO(store.get(self.digest)))
        return LossTable.from_frame(frame, subject=self.subject, window=window)


class EvaluatedArm(Record):
    """One arm on the window."""

    losses: StoredTable = Field(description="Of every seed.")
    deployed: StoredTable = Field(description="Of all seeds as one model: what would serve.")
    mistakes: StoredTable | None = Field(description="0/1 losses of a classifier.")
    metric_table: MetricTable

    @property
    def metrics(self) -> dict[str, float]:
        """Mean over seeds and folds."""
        return self.metric_table.means


class Evaluation(Record):
    """Everything that was scored on one window."""

    subject: dict[str, str] = Field(description="data, config and code of the candidate.")
    window: str
    candidate: EvaluatedArm
    reference: EvaluatedArm
    reference_name: str = Field(description="For people.")
    reference_code: str = Field(
        "", description="Code that scored the reference, when it is not the code of the candidate."
    )
    symptoms: tuple[str, ...] = Field(
        (), description="What the curves of the candidate's trainings show to be wrong."
    )
    approved: StoredTable | None = Field(description="Of the version that guards.approved names.")
    suites: str = Field(description="Artifact digest of the report on all suites, JSON.")

    @property
    def tables(self) -> dict[str, str]:
        """Artifact digests of all that the decision rests on, by role."""
        found = {"suites": self.suites}
        for role, arm in (("candidate", self.candidate), ("reference", self.reference)):
            found[f"{role} losses"] = arm.losses.digest
            found[f"{role} deployed losses"] = arm.deployed.digest
            if arm.mistakes is not None:
                found[f"{role} mistakes"] = arm.mistakes.digest
        if self.approved is not None:
            found["approved losses"] = self.approved.digest
        return found

    def evidence(self, store: ArtifactStore) -> GuardEvidence:
        """Read what the gate and its guards look at."""

        def read(table: StoredTable) -> LossTable:
            return table.get(store, window=self.window)

        return GuardEvidence(
            candidate=read(self.candidate.losses),
            reference=read(self.reference.losses),
            candidate_metrics=self.candidate.metric_table,
            reference_metrics=self.reference.metric_table,
            approved=read(self.approved) if self.approved else None,
            deployed=read(self.candidate.deployed),
            reference_deployed=read(self.reference.deployed),
        )

    def mistakes(self, store: ArtifactStore) -> tuple[LossTable, LossTable] | None:
        """Read both arms' mistakes; None where there are no classes."""
        ours, theirs = self.candidate.mistakes, self.reference.mistakes
        if ours is None or theirs is None:
            return None
        return ours.get(store, window=self.window), theirs.get(store, window=self.window)

    def suite_report(self, store: ArtifactStore) -> SuiteReport:
        """Read what the candidate did on the regression suites."""
        return SuiteReport.model_validate_json(store.get(self.suites))
