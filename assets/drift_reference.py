"""What drift of these models will be judged against, kept with the version (ROLL-3)."""

import dagster as dg
from pydantic import Field

from sluice.assets.best_config import BestConfig, with_best
from sluice.assets.config_schema import NO_CONFIG
from sluice.assets.features import FeatureSet
from sluice.assets.metadata import table
from sluice.assets.resources import RECORDS, State
from sluice.assets.subjects import require_same
from sluice.assets.traced import traced
from sluice.base.cpu_count import count_cores
from sluice.base.digests import short
from sluice.base.settings import Record
from sluice.config.pipeline import PipelineSettings
from sluice.data.table import load_table
from sluice.drift.held_out import KeptReference, keep_reference
from sluice.training.members import TrainedModels
from sluice.training.weights import load_member

DRIFT_REFERENCE = "drift_reference"
SEED = 0
"""Draws the windows that thresholds are calibrated on: the same rows, the same reference."""
SWITCHED_OFF = KeptReference(
    features=None,
    predictions=None,
    losses=None,
    lacking=("Drift is switched off for this pipeline (drift: null).",),
)


class DriftBasis(Record):
    """What was kept, and for which candidate."""

    candidate: str = Field(description="Digest of the candidate.")
    kept: KeptReference


def drift_reference_asset(pipeline: PipelineSettings) -> dg.AssetsDefinition:
    """Build the asset for one pipeline."""

    @dg.asset(
        key=[pipeline.name, DRIFT_REFERENCE],
        ins={
            name: dg.AssetIn(key=[pipeline.name, name])
            for name in ("features", "best_config", "trained_models")
        },
        io_manager_key=RECORDS,
        config_schema=NO_CONFIG,
        group_name=f"{pipeline.name}_training",
        kinds={"parquet"},
        owners=list(pipeline.owners),
        description="The rows these models learned from and their answers on held-out rows, as "
        "references without rows, and their held-out losses. They stay with the version: drift is "
        "judged against what the model in production learned.",
    )
    @traced
    def drift_reference(
        context: dg.AssetExecutionContext,
        sluice_state: dg.ResourceParam[State],
        features: FeatureSet,
        best_config: BestConfig,
        trained_models: TrainedModels,
    ) -> dg.MaterializeResult[DriftBasis]:
        tuned = with_best(pipeline, best_config)
        workload = tuned.loaded_workload
        require_same(
            "The trained models' data",
            made_for=trained_models.data,
            now=features.table.digest,
            remedy="Materialize trained_models first.",
        )
        if pipeline.drift is None:
            kept = SWITCHED_OFF
        else:
            kept = keep_reference(
                workload,
                load_table(features.table, sluice_state.store),
                features.folds,
                trained_models.members,
                lambda member: load_member(member, workload, tuned.model, sluice_state.store),
                pipeline.drift,
                store=sluice_state.store,
                seed=SEED,
                threads=count_cores(),
                on_progress=context.log.info,
            )
            for why in (*kept.lacking, *kept.left_out):
                context.log.warning(why)
        return dg.MaterializeResult(
            value=DriftBasis(candidate=trained_models.candidate, kept=kept),
            metadata={
                "candidate": trained_models.candidate,
                "kept": table(
                    [{"what": role, "digest": short(d)} for role, d in kept.artifacts.items()]
                ),
                "lacking": dg.MetadataValue.md("\n".join(kept.lacking) or "Nothing."),
                "left out": dg.MetadataValue.md("\n".join(kept.left_out) or "Nothing."),
            },
        )

    return drift_reference
