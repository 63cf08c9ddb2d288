"""Asset ``drift_reference``: reference distributions for drift tests, stored with the version."""

import dagster as dg
from pydantic import Field

from sluice.assets.best_config import BestConfig, apply_best_config
from sluice.assets.config_schema import NO_CONFIG
from sluice.assets.features import FeatureSet
from sluice.assets.metadata import table
from sluice.assets.receipt_subjects import require_same
from sluice.assets.resources import RECORDS, SluiceState
from sluice.assets.spans import spanned
from sluice.base.cpu_count import count_cores
from sluice.base.digests import short
from sluice.base.settings import Record
from sluice.config.drift_settings import DriftSettings
from sluice.config.resolved import SearchInputs
from sluice.data.table import load_table
from sluice.drift.reference_store import ReferenceArtifacts, store_references
from sluice.training.members import TrainedModels
from sluice.training.weights import load_member

DRIFT_REFERENCE = "drift_reference"
CALIBRATION_SEED = 0
"""Seed of the threshold calibration, fixed so that equal rows give an equal reference."""
NO_REFERENCES = ReferenceArtifacts(
    features=None,
    predictions=None,
    losses=None,
    lacking=("Drift detection is disabled for this pipeline (drift: null).",),
)


class DriftReferenceRecord(Record):
    """Drift references of one candidate."""

    candidate: str = Field(description="Digest of the candidate.")
    references: ReferenceArtifacts


def drift_reference_asset(
    pipeline: str, inputs: SearchInputs, drift: DriftSettings | None
) -> dg.AssetsDefinition:
    """Build the asset for one pipeline; without drift settings it stores no reference."""

    @dg.asset(
        key=[pipeline, DRIFT_REFERENCE],
        ins={
            name: dg.AssetIn(key=[pipeline, name])
            for name in ("features", "best_config", "trained_models")
        },
        io_manager_key=RECORDS,
        config_schema=NO_CONFIG,
        group_name=pipeline,
        kinds={"parquet"},
        description="Reference distributions for drift detection: training rows, predictions on "
        "held-out rows, and held-out losses. Distributions are stored as summaries, without the "
        "rows. They are stored with the version, so that drift is measured against the data that "
        "the model in production was trained on. For images and texts, the embeddings that the "
        "first network computes for held-out rows are stored, too.",
    )
    @spanned
    def drift_reference(
        context: dg.AssetExecutionContext,
        sluice_state: dg.ResourceParam[SluiceState],
        features: FeatureSet,
        best_config: BestConfig,
        trained_models: TrainedModels,
    ) -> dg.MaterializeResult[DriftReferenceRecord]:
        training_inputs = apply_best_config(inputs, best_config)
        require_same(
            "The trained models' data",
            made_for=trained_models.data,
            current=features.table.digest,
            remedy="Materialize trained_models first.",
        )
        if drift is None:
            references = NO_REFERENCES
        else:
            references = store_references(
                training_inputs.workload,
                load_table(features.table, sluice_state.store),
                features.folds,
                trained_models.members,
                lambda member: load_member(
                    member, training_inputs.workload, training_inputs.model, sluice_state.store
                ),
                drift,
                store=sluice_state.store,
                seed=CALIBRATION_SEED,
                threads=count_cores(),
                on_progress=context.log.info,
            )
            for reason in (*references.lacking, *references.left_out):
                context.log.warning(reason)
        return dg.MaterializeResult(
            value=DriftReferenceRecord(candidate=trained_models.candidate, references=references),
            metadata={
                "candidate": trained_models.candidate,
                "references": table(
                    [
                        {"reference": role, "digest": short(digest)}
                        for role, digest in references.artifacts.items()
                    ]
                ),
                "missing": dg.MetadataValue.md("\n".join(references.lacking) or "Nothing."),
                "columns left out": dg.MetadataValue.md(
                    "\n".join(references.left_out) or "Nothing."
                ),
            },
        )

    return drift_reference
