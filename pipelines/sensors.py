"""From a verdict to a promotion: thin, because a sensor is cut off after a minute."""

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.candidate import CANDIDATE, RECEIPT, VERDICT, VERSION
from assets.resources import State
from pipelines.jobs import PRODUCTION
from sluice.pipeline import PipelineSettings


def promotion_sensor(
    pipeline: PipelineSettings, job: UnresolvedAssetJobDefinition
) -> dg.SensorDefinition:
    """Start the promotion job when the newest candidate's verdict says PROMOTE."""

    @dg.asset_sensor(
        asset_key=dg.AssetKey([pipeline.name, "candidate"]),
        job=job,
        name=f"{pipeline.name}_promotion_sensor",
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=30,
        description="Decides nothing: reads the verdict on the newest candidate and starts the "
        "promotion job when it says PROMOTE.",
    )
    def sensor(
        context: dg.SensorEvaluationContext, asset_event: dg.EventLogEntry, state: State
    ) -> dg.RunRequest | dg.SkipReason:
        del context
        with state.ledger() as ledger:
            production = ledger.production_number(pipeline.name)
        return request_promotion(pipeline.name, asset_event, production=production)

    return sensor


def request_promotion(
    pipeline_name: str, event: dg.EventLogEntry, *, production: int | None
) -> dg.RunRequest | dg.SkipReason:
    """Return what one materialization of a candidate asks for.

    Args:
        pipeline_name: Name of the pipeline and its model.
        event: Materialization of the candidate.
        production: Number of the version in production, None for none.
    """
    materialization = event.asset_materialization
    metadata = materialization.metadata if materialization else {}
    verdict = metadata[VERDICT].value if VERDICT in metadata else "no verdict"
    if verdict != "PROMOTE":
        return dg.SkipReason(f"The verdict on the newest candidate is {verdict}.")
    candidate, version = str(metadata[CANDIDATE].value), int(str(metadata[VERSION].value))
    if version == production:
        return dg.SkipReason(f"Version {version} is in production already.")
    return dg.RunRequest(
        run_key=str(metadata[RECEIPT].value),
        run_config={"ops": {f"{pipeline_name}__{PRODUCTION}": {"config": {"version": version}}}},
        tags={"sluice/candidate": candidate[:12], "sluice/version": str(version)},
    )
