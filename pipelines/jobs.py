"""The jobs of a pipeline: find settings, make a candidate, put one into production.

All run in one process: the stages follow each other, training starts its own workers, and a
process per step would cost seconds each for imports alone.
"""

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from sluice.assets.drift_report import DRIFT_REPORT
from sluice.assets.rollout import ROLLOUT
from sluice.assets.rollout_review import REVIEW
from sluice.checks.registry import SOUND
from sluice.config.pipeline import PipelineSettings
from sluice.pipelines.executor import one_process

PRODUCTION = "production_model"


def training_job(pipeline: PipelineSettings) -> UnresolvedAssetJobDefinition:
    """Everything from raw rows to a registered candidate."""
    everything = dg.AssetSelection.key_prefixes([pipeline.name])
    names = [PRODUCTION]
    names += [] if pipeline.drift is None else [DRIFT_REPORT]
    names += [] if pipeline.rollout is None else [ROLLOUT, REVIEW]
    deciding = dg.AssetSelection.assets(*([pipeline.name, name] for name in names))
    return dg.define_asset_job(
        training_name(pipeline),
        selection=everything - deciding,
        description=f"{pipeline.description} Raw rows to a registered candidate with a verdict; "
        "promotes nothing.".strip(),
        executor_def=one_process,
    )


def training_name(pipeline: PipelineSettings) -> str:
    """Return what the training job is called."""
    return f"{pipeline.name}_training"


def drift_job(pipeline: PipelineSettings) -> UnresolvedAssetJobDefinition:
    """Look whether anything moved since the version in production learned."""
    return dg.define_asset_job(
        drift_name(pipeline),
        selection=dg.AssetSelection.assets([pipeline.name, DRIFT_REPORT]),
        description="Judge the windows that are new: rows, requests, answers, latency, losses.",
        executor_def=one_process,
    )


def drift_name(pipeline: PipelineSettings) -> str:
    """Return what the drift job is called."""
    return f"{pipeline.name}_drift"


def search_job(pipeline: PipelineSettings) -> UnresolvedAssetJobDefinition:
    """Everything from raw rows to the best settings."""
    return dg.define_asset_job(
        search_name(pipeline),
        selection=dg.AssetSelection.assets([pipeline.name, "best_config"]).upstream(),
        description="Raw rows, their checks, the POC gate and the search; trains no member.",
        executor_def=one_process,
    )


def search_name(pipeline: PipelineSettings) -> str:
    """Return what the search job is called."""
    return f"{pipeline.name}_search"


def rollout_job(pipeline: PipelineSettings) -> UnresolvedAssetJobDefinition:
    """Start the rollout of one version that its gate promoted."""
    return dg.define_asset_job(
        rollout_name(pipeline),
        selection=dg.AssetSelection.assets([pipeline.name, ROLLOUT]),
        description="Begin to send traffic to a version whose receipts allow it; the rollout "
        "sensor goes on from there.",
        executor_def=one_process,
    )


def review_job(pipeline: PipelineSettings) -> UnresolvedAssetJobDefinition:
    """Judge the rollout on labels that arrived, and keep the rows it failed on."""
    return dg.define_asset_job(
        review_name(pipeline),
        selection=dg.AssetSelection.assets([pipeline.name, REVIEW]),
        description="The gate on live rows that have labels now; after a rollback, the rows that "
        "failed as a regression suite.",
        executor_def=one_process,
    )


def review_name(pipeline: PipelineSettings) -> str:
    """Return what the review job is called."""
    return f"{pipeline.name}_rollout_review"


def rollout_name(pipeline: PipelineSettings) -> str:
    """Return what the rollout job is called."""
    return f"{pipeline.name}_rollout"


def verification_job(pipeline: PipelineSettings) -> UnresolvedAssetJobDefinition:
    """Check that the registry holds together; the run fails on a finding."""
    return dg.define_asset_job(
        f"{pipeline.name}_registry_verification",
        selection=dg.AssetSelection.checks(
            dg.AssetCheckKey(dg.AssetKey([pipeline.name, PRODUCTION]), SOUND)
        ),
        description="What 'sluice registry verify' checks for this model, and the whole log.",
        executor_def=one_process,
    )


def promotion_name(pipeline: PipelineSettings) -> str:
    """Return what the promotion job is called."""
    return f"{pipeline.name}_promotion"


def promotion_job(pipeline: PipelineSettings) -> UnresolvedAssetJobDefinition:
    """Point production at one version that its gate promoted."""
    return dg.define_asset_job(
        promotion_name(pipeline),
        # Its check reads every artifact, on a schedule of its own.
        selection=dg.AssetSelection.assets([pipeline.name, PRODUCTION]).without_checks(),
        description="Move the production pointer to a version whose receipts allow it.",
        executor_def=one_process,
    )
