"""The jobs of a pipeline: find settings, make a candidate, put one into production.

All run in one process: the stages follow each other, training starts its own workers, and a
process per step would cost seconds each for imports alone.
"""

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from sluice.pipeline import PipelineSettings

PRODUCTION = "production_model"


def training_job(pipeline: PipelineSettings) -> UnresolvedAssetJobDefinition:
    """Everything from raw rows to a registered candidate."""
    everything = dg.AssetSelection.key_prefixes([pipeline.name])
    return dg.define_asset_job(
        f"{pipeline.name}_training",
        selection=everything - dg.AssetSelection.assets([pipeline.name, PRODUCTION]),
        description=f"{pipeline.description} Raw rows to a registered candidate with a verdict; "
        "promotes nothing.".strip(),
        executor_def=dg.in_process_executor,
    )


def search_job(pipeline: PipelineSettings) -> UnresolvedAssetJobDefinition:
    """Everything from raw rows to the best settings."""
    return dg.define_asset_job(
        search_name(pipeline),
        selection=dg.AssetSelection.assets([pipeline.name, "best_config"]).upstream(),
        description="Raw rows, their checks, the POC gate and the search; trains no member.",
        executor_def=dg.in_process_executor,
    )


def search_name(pipeline: PipelineSettings) -> str:
    """Return what the search job is called."""
    return f"{pipeline.name}_search"


def promotion_job(pipeline: PipelineSettings) -> UnresolvedAssetJobDefinition:
    """Point production at one version that its gate promoted."""
    return dg.define_asset_job(
        f"{pipeline.name}_promotion",
        selection=dg.AssetSelection.assets([pipeline.name, PRODUCTION]),
        description="Move the production pointer to a version whose receipts allow it.",
        executor_def=dg.in_process_executor,
    )
