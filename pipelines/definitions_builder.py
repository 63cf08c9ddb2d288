"""Builds the Dagster definitions of one pipeline from its settings."""

import dagster as dg
from dagster._core.errors import DagsterInvalidDefinitionError
from dagster_shared.check import ParameterCheckError

from sluice.assets.best_config import best_config_asset
from sluice.assets.candidate import candidate_asset
from sluice.assets.drift_reference import drift_reference_asset
from sluice.assets.drift_report import drift_report_asset
from sluice.assets.evaluation import evaluation_asset
from sluice.assets.features import features_asset
from sluice.assets.poc_report import poc_report_asset
from sluice.assets.production_model import production_model_asset
from sluice.assets.promotion_verdict import promotion_verdict_asset
from sluice.assets.raw_data import raw_data_asset
from sluice.assets.rollout import rollout_asset
from sluice.assets.rollout_review import rollout_review_asset
from sluice.assets.trained_models import trained_models_asset
from sluice.base.errors import SettingsError
from sluice.checks.best_config import best_config_checks
from sluice.checks.candidate import candidate_checks
from sluice.checks.data import features_checks, raw_data_checks
from sluice.checks.drift import drift_check
from sluice.checks.evaluation import evaluation_checks
from sluice.checks.evaluation_inputs import evaluation_inputs_check
from sluice.checks.poc_report import poc_checks
from sluice.checks.promotion_verdict import verdict_check
from sluice.checks.registry import registry_check
from sluice.checks.rollout import rollout_check
from sluice.checks.trained_models import trained_models_checks
from sluice.config.pipeline import PipelineSettings
from sluice.pipelines.drift_sensor import drift_sensor
from sluice.pipelines.jobs import (
    drift_job,
    promotion_job,
    review_job,
    rollout_job,
    search_job,
    training_job,
    verification_job,
)
from sluice.pipelines.rollout_sensor import rollout_sensor
from sluice.pipelines.schedules import retrain_schedule, verification_schedule
from sluice.pipelines.sensors import promotion_sensor


def build_definitions(pipeline: PipelineSettings) -> dg.Definitions:
    """Return the definitions of one pipeline, without resources (see ``with_resources``).

    Raises:
        SettingsError: The workload cannot be imported, or a setting of it or of Dagster is invalid.
    """
    _ = (
        pipeline.loaded_workload
    )  # errors of the workload are reported on load, not in a nightly run
    try:
        return _definitions(pipeline)
    except (DagsterInvalidDefinitionError, ParameterCheckError) as error:
        raise SettingsError(
            f"Pipeline {pipeline.name}: {error}",
            fix="Correct the owners, the cron or the timezone in the pipeline's file.",
        ) from error


def _definitions(pipeline: PipelineSettings) -> dg.Definitions:
    training, verification = training_job(pipeline), verification_job(pipeline)
    promotion, jobs = promotion_job(pipeline), []
    assets, checks, sensors, sensor_jobs = [], [], [], [promotion]
    if pipeline.drift is not None:
        drift = drift_job(pipeline)
        jobs.append(drift)
        assets.append(drift_report_asset(pipeline))
        checks.append(drift_check(pipeline))
        sensors.append(drift_sensor(pipeline, [drift, training]))
    if pipeline.rollout is not None:
        rollout = rollout_job(pipeline)
        review = review_job(pipeline)
        sensor_jobs.append(rollout)
        jobs += [rollout, review]
        assets += [rollout_asset(pipeline, pipeline.rollout), rollout_review_asset(pipeline)]
        checks.append(rollout_check(pipeline))
        sensors.append(rollout_sensor(pipeline, [promotion, review]))
    return dg.Definitions(
        assets=[
            raw_data_asset(pipeline),
            features_asset(pipeline),
            poc_report_asset(pipeline),
            best_config_asset(pipeline),
            trained_models_asset(pipeline),
            drift_reference_asset(pipeline),
            evaluation_asset(pipeline),
            promotion_verdict_asset(pipeline),
            candidate_asset(pipeline),
            production_model_asset(pipeline),
            *assets,
        ],
        asset_checks=[
            raw_data_checks(pipeline),
            features_checks(pipeline),
            poc_checks(pipeline),
            evaluation_inputs_check(pipeline),
            best_config_checks(pipeline),
            trained_models_checks(pipeline),
            evaluation_checks(pipeline),
            verdict_check(pipeline),
            candidate_checks(pipeline),
            registry_check(pipeline),
            *checks,
        ],
        jobs=[search_job(pipeline), training, promotion, verification, *jobs],
        schedules=[
            retrain_schedule(pipeline, training),
            verification_schedule(pipeline, verification),
        ],
        sensors=[
            promotion_sensor(pipeline, sensor_jobs),
            *sensors,
        ],
    )
