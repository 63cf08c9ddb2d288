"""Losses of the candidate and of what it would replace, on the same rows."""

import io

import dagster as dg
import pandas as pd
from pydantic import Field

from assets.best_config import BestConfig, with_best
from assets.features import FeatureSet
from assets.metadata import picture, table
from assets.resources import State
from assets.subjects import candidate_subject, require_same
from sluice.artifacts import ArtifactStore
from sluice.data.table import TableRecord, load_table
from sluice.digests import digest_json, short
from sluice.evaluation.losses import LossTable
from sluice.evaluation.plots import loss_over_time_png
from sluice.evaluation.reference import score_version
from sluice.evaluation.scoring import Scores, score_baseline, score_members, window_digest
from sluice.pipeline import PipelineSettings
from sluice.registry.ledger import Ledger
from sluice.registry.lineage import BASELINE
from sluice.registry.records import Version
from sluice.settings import Record
from sluice.training.members import TrainedModels
from sluice.training.weights import load_member


class Evaluation(Record):
    """Both arms on one window, by digest."""

    subject: dict[str, str] = Field(description="data, config and code of the candidate.")
    candidate: str
    reference: str = Field(description="Candidate digest of the other arm, or 'baseline'.")
    reference_name: str = Field(description="For people.")
    window: str
    losses: str = Field(description="Artifact digest of the candidate's losses, Parquet.")
    reference_losses: str = Field(description="Artifact digest of the reference's, Parquet.")
    metrics: dict[str, float]
    reference_metrics: dict[str, float]


def evaluation_asset(pipeline: PipelineSettings) -> dg.AssetsDefinition:
    """Build the asset for one pipeline."""

    @dg.asset(
        key=[pipeline.name, "evaluation"],
        ins={
            name: dg.AssetIn(key=[pipeline.name, name])
            for name in ("raw_data", "features", "best_config", "trained_models")
        },
        group_name=f"{pipeline.name}_promotion",
        kinds={"pytorch", "parquet"},
        owners=list(pipeline.owners),
        description="Loss per seed and test row of the candidate and of what it would replace: "
        "the version in production or, when there is none, the workload's baseline.",
    )
    def evaluation(
        context: dg.AssetExecutionContext,
        state: State,
        raw_data: TableRecord,
        features: FeatureSet,
        best_config: BestConfig,
        trained_models: TrainedModels,
    ) -> dg.MaterializeResult[Evaluation]:
        workload = pipeline.loaded_workload
        store = state.store
        tuned = with_best(pipeline, best_config)
        subject = candidate_subject(tuned, features.table.digest)
        for role, digest in subject.items():
            require_same(
                f"The trained models' {role}",
                made_for=getattr(trained_models, role),
                now=digest,
                remedy="Materialize features, poc_report, best_config and trained_models first.",
            )
        require_same(
            "The features' raw rows",
            made_for=features.raw,
            now=raw_data.digest,
            remedy="Materialize features first.",
        )
        frame = load_table(features.table, store)
        window = window_digest(frame, features.folds)
        with state.ledger() as ledger:
            reference = choose_reference(
                ledger, pipeline.name, candidate=trained_models.candidate, window=window
            )
        candidate_scores = score_members(
            workload,
            frame,
            features.folds,
            trained_models.members,
            lambda member: load_member(member, workload, tuned.model, store),
            subject=trained_models.candidate,
        )
        if reference is None:
            name = "the workload's baseline"
            reference_scores = score_baseline(workload, frame, features.folds, subject=BASELINE)
        else:
            name = f"version {reference.number} ({short(reference.candidate)})"
            raw = load_table(raw_data, store)
            reference_scores = score_version(
                reference.lineage,
                workload,
                raw,
                frame,
                features.folds,
                store,
                window=window,
                code=trained_models.code,
            )
        context.log.info(f"compared with {name}")
        record = Evaluation(
            subject=subject,
            candidate=trained_models.candidate,
            reference=reference_scores.losses.subject,
            reference_name=name,
            window=window,
            losses=store.put(_parquet(candidate_scores.losses)),
            reference_losses=store.put(_parquet(reference_scores.losses)),
            metrics=candidate_scores.metrics,
            reference_metrics=reference_scores.metrics,
        )
        return dg.MaterializeResult(
            value=record,
            data_version=dg.DataVersion(digest_json([record.losses, record.reference_losses])),
            metadata={
                "compared with": name,
                "test rows": candidate_scores.losses.num_rows,
                "metrics": table(_rows(candidate_scores, reference_scores, name)),
                "gain over time": picture(
                    loss_over_time_png(
                        candidate_scores.losses, reference_scores.losses, unit=workload.loss_unit
                    ),
                    "cumulative gain over the test rows",
                ),
            },
        )

    return evaluation


def choose_reference(ledger: Ledger, model: str, *, candidate: str, window: str) -> Version | None:
    """Return the version a candidate is to be compared with; None for the baseline.

    That is production. A candidate that is in production itself keeps the comparison that its
    decision on this window was made on: asked again, the gate answers the same.
    """
    production = ledger.production(model)
    if production is None or production.candidate != candidate:
        return production
    decided = ledger.latest_decision(model, candidate=candidate, window=window)
    if decided is None or decided.subject["reference"] == BASELINE:
        return None
    earlier = decided.subject["reference"]
    return ledger.version_of(model, earlier)


def evaluated_losses(evaluation: Evaluation, store: ArtifactStore) -> tuple[LossTable, LossTable]:
    """Return the losses of candidate and reference, in this order."""
    return (
        _read(store.get(evaluation.losses), evaluation.candidate, evaluation.window),
        _read(store.get(evaluation.reference_losses), evaluation.reference, evaluation.window),
    )


def _parquet(losses: LossTable) -> bytes:
    buffer = io.BytesIO()
    losses.to_frame().to_parquet(buffer, index=False)
    return buffer.getvalue()


def _read(content: bytes, subject: str, window: str) -> LossTable:
    return LossTable.from_frame(
        pd.read_parquet(io.BytesIO(content)), subject=subject, window=window
    )


def _rows(candidate: Scores, reference: Scores, name: str) -> list[dict[str, object]]:
    return [
        {"metric": metric, "candidate": value, name: reference.metrics.get(metric, float("nan"))}
        for metric, value in candidate.metrics.items()
    ]
