"""Stored result of the ``evaluation`` asset, with the digests of its loss tables."""

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
    """Losses of one model, stored as an artifact."""

    subject: str = Field(description="Digest of the model, or 'baseline'.")
    digest: str = Field(description="Artifact digest of the losses (Parquet).")

    @classmethod
    def put(cls, losses: LossTable, store: ArtifactStore) -> "StoredTable":
        """Store the losses. Identical losses are stored once."""
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
    """Scores of one arm (candidate or reference) on the test window."""

    losses: StoredTable = Field(description="Losses of every seed.")
    deployed: StoredTable = Field(
        description="Losses of the deployed ensemble: the mean output of all seeds."
    )
    mistakes: StoredTable | None = Field(
        description="0/1 losses of a classifier; None for other workloads."
    )
    metric_table: MetricTable

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics averaged over seeds and folds."""
        return self.metric_table.means


class Evaluation(Record):
    """Scores of all models on one test window."""

    subject: dict[str, str] = Field(description="Digests of the candidate's data, config and code.")
    window: str = Field(description="Digest of the test rows.")
    candidate: EvaluatedArm
    reference: EvaluatedArm
    reference_name: str = Field(description="Display name of the reference.")
    reference_code: str = Field(
        "",
        description="Note on the code that scored the reference; empty if it is the candidate's.",
    )
    symptoms: tuple[str, ...] = Field(
        (), description="Problems that the training curves of the candidate show, and what to do."
    )
    approved: StoredTable | None = Field(
        description="Losses of the version in the setting guards.approved; None if it is not set."
    )
    suites: str = Field(description="Artifact digest of the regression suite report (JSON).")
    worst_rows: dict[str, str] = Field(
        default={},
        description="Descriptions of the rows with the lowest gains, by index label; empty if the "
        "workload has no display column.",
    )

    @property
    def tables(self) -> dict[str, str]:
        """Artifact digests of all tables that the decision is based on, by role."""
        tables = {"suites": self.suites}
        for role, arm in (("candidate", self.candidate), ("reference", self.reference)):
            tables[f"{role} losses"] = arm.losses.digest
            tables[f"{role} deployed losses"] = arm.deployed.digest
            if arm.mistakes is not None:
                tables[f"{role} mistakes"] = arm.mistakes.digest
        if self.approved is not None:
            tables["approved losses"] = self.approved.digest
        return tables

    def evidence(self, store: ArtifactStore) -> GuardEvidence:
        """Read the losses and metrics that the promotion gate and its guards compare."""

        def read(table: StoredTable) -> LossTable:
            return table.get(store, window=self.window)

        return GuardEvidence(
            candidate=read(self.candidate.losses),
            reference=read(self.reference.losses),
            candidate_metrics=self.candidate.metric_table,
            reference_metrics=self.reference.metric_table,
            approved_losses=read(self.approved) if self.approved else None,
            deployed_losses=read(self.candidate.deployed),
            reference_deployed_losses=read(self.reference.deployed),
        )

    def mistakes(self, store: ArtifactStore) -> tuple[LossTable, LossTable] | None:
        """Read the 0/1 losses of both arms; None unless both are classifiers."""
        candidate, reference = self.candidate.mistakes, self.reference.mistakes
        if candidate is None or reference is None:
            return None
        return candidate.get(store, window=self.window), reference.get(store, window=self.window)

    def suite_report(self, store: ArtifactStore) -> SuiteReport:
        """Read the results of the candidate on the regression suites."""
        return SuiteReport.model_validate_json(store.get(self.suites))
