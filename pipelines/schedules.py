"""When a pipeline retrains by itself."""

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from sluice.pipeline import PipelineSettings


def retrain_schedule(
    pipeline: PipelineSettings, job: UnresolvedAssetJobDefinition
) -> dg.ScheduleDefinition:
    """Start the training job on the pipeline's cron."""
    return dg.ScheduleDefinition(
        name=f"{pipeline.name}_retrain_schedule",
        job=job,
        cron_schedule=pipeline.schedule.cron,
        execution_timezone=pipeline.schedule.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Retrain on what the source holds now. Units that nothing changed for are "
        "not fitted again.",
    )
