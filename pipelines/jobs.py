"""The two jobs of a pipeline: make a candidate, and put one into production.

Both run in one process: the stages follow each other, training starts its own workers, and a
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


def promotion_job(pipeline: PipelineSettings) -> UnresolvedAssetJobDefinition:
    """Point production at one version that its gate promoted."""
    return dg.define_asset_job(
        f"{pipeline.name}_promotion",
        selection=dg.AssetSelection.assets([pipeline.name, PRODUCTION]),
        description="Move the production pointer to a version whose receipts allow it.",
        executor_def=dg.in_process_executor,
    )
