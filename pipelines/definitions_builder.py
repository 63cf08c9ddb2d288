"""Builds the Dagster definitions of one pipeline."""

import dagster as dg
from dagster._core.errors import DagsterInvalidDefinitionError
from dagster_shared.check import ParameterCheckError

from sluice.assets.approval import approval_asset
from sluice.assets.best_config import best_config_asset
from sluice.assets.candidate import candidate_asset
from sluice.assets.drift_reference import drift_reference_asset
from sluice.assets.drift_report import drift_report_asset
from sluice.assets.evaluation import evaluation_asset
from sluice.assets.evaluation_inputs import PlannedEvaluation
from sluice.assets.features import features_asset
from sluice.assets.poc_report import poc_report_asset
from sluice.assets.production_model import production_model_asset
from sluice.assets.promotion_verdict import promotion_verdict_asset
from sluice.assets.raw_data import raw_data_asset
from sluice.assets.rollout import rollout_asset
from sluice.assets.rollout_review import rollout_review_asset
from sluice.assets.trained_models import trained_models_asset
from sluice.base.errors import SettingsError
from sluice.checks.approval import approval_check
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
from sluice.config.resolved import ResolvedPipeline
from sluice.pipelines.drift_sensor import drift_sensor
from sluice.pipelines.failure_sensor import failure_sensor
from sluice.pipelines.jobs import (
    approval_job,
    drift_job,
    promotion_job,
    review_job,
    rollout_job,
    search_job,
    training_job,
    verification_job,
)
from sluice.pipelines.promotion_sensor import promotion_sensor
from sluice.pipelines.rollout_sensor import rollout_sensor
from sluice.pipelines.schedules import retrain_schedule, verification_schedule


def build_definitions(pipeline: ResolvedPipeline) -> dg.Definitions:
    """Return the definitions of one pipeline, without resources (see ``with_resources``).

    Raises:
        SettingsError: Dagster rejects a setting.
    """
    try:
        return _build(pipeline)
    except (DagsterInvalidDefinitionError, ParameterCheckError) as error:
        raise SettingsError(
            f"Pipeline {pipeline.settings.name}: {error}",
            fix="Correct the owners, the cron or the timezone in the pipeline's file.",
        ) from error


def _build(pipeline: ResolvedPipeline) -> dg.Definitions:
    settings, workload = pipeline.settings, pipeline.workload
    name, path = settings.name, settings.workload
    poc, gate_settings_digest, seed = settings.poc, settings.gate_settings_digest, settings.seeds[0]
    training_inputs, search_inputs = pipeline.training, pipeline.search
    planned_evaluation = PlannedEvaluation(
        seeds=settings.seeds,
        baseline=settings.baseline,
        guards=settings.guards,
        suites=settings.suites,
    )
    has_rollout = settings.rollout is not None
    training = training_job(name, purpose=settings.description)
    approval_settings, requires_approval = settings.approval, settings.approval.required
    promotion = promotion_job(name, checks_approval=requires_approval)
    verification = verification_job(name)
    jobs = [search_job(name), training, promotion, verification]
    assets = [
        raw_data_asset(name, workload),
        features_asset(name, workload, path=path, compute=search_inputs.compute),
        poc_report_asset(
            name,
            training_inputs,
            poc,
            seed=seed,
            guarded_metrics=settings.guards.metric_names,
        ),
        best_config_asset(
            name,
            search_inputs,
            poc=poc,
            planned_evaluation=planned_evaluation,
            tracking=settings.tracking,
        ),
        trained_models_asset(
            name,
            search_inputs,
            poc=poc,
            planned_evaluation=planned_evaluation,
            diagnosis=settings.diagnosis,
            production_code=settings.production_code,
            tracking=settings.tracking,
        ),
        drift_reference_asset(name, search_inputs, settings.drift),
        evaluation_asset(
            name,
            search_inputs,
            baseline_settings=settings.baseline,
            suites=settings.suites,
            approved_candidate=settings.guards.approved,
            production_code=settings.production_code,
        ),
        promotion_verdict_asset(
            name,
            workload,
            settings.model,
            gate=settings.gate,
            guards=settings.guards,
            gate_settings_digest=gate_settings_digest,
            approval_settings=approval_settings,
        ),
        candidate_asset(
            name,
            search_inputs,
            poc=poc,
            advised_power=settings.gate.advised_power,
            tracking=settings.tracking,
        ),
        production_model_asset(
            name,
            has_rollout=has_rollout,
            gate_settings_digest=gate_settings_digest,
            approval_settings=approval_settings,
            tracking=settings.tracking,
        ),
    ]
    checks = [
        raw_data_checks(name, workload),
        features_checks(name, workload, poc.look_ahead, path=path, seed=seed),
        poc_checks(name),
        evaluation_inputs_check(name, training_inputs, planned_evaluation),
        best_config_checks(name),
        trained_models_checks(name, search_inputs, poc.predictions, seeds=settings.seeds),
        evaluation_checks(name),
        verdict_check(name),
        candidate_checks(name),
        registry_check(name),
    ]
    if requires_approval:
        jobs.append(approval_job(name))
        assets.append(approval_asset(name, approval_settings))
        checks.append(approval_check(name, approval_settings))
    promotion_jobs, sensors = [promotion], []
    if settings.drift is not None:
        drift = drift_job(name)
        jobs.append(drift)
        assets.append(drift_report_asset(name, workload, settings.drift, settings.drift_alarm))
        checks.append(drift_check(name))
        sensors.append(drift_sensor(name, [drift, training], workload, settings.drift))
    if settings.rollout is not None:
        rollout, review = rollout_job(name, checks_approval=requires_approval), review_job(name)
        promotion_jobs.append(rollout)
        jobs += [rollout, review]
        assets += [
            rollout_asset(
                name,
                settings.rollout,
                gate_settings_digest=gate_settings_digest,
                approval_settings=approval_settings,
            ),
            rollout_review_asset(name, workload, settings.gate),
        ]
        checks.append(rollout_check(name))
        sensors.append(
            rollout_sensor(name, [promotion, review], approval_settings=approval_settings)
        )
    return dg.Definitions(
        assets=dg.map_asset_specs(
            lambda spec: spec.replace_attributes(owners=list(settings.owners)), assets
        ),
        asset_checks=checks,
        jobs=jobs,
        schedules=[
            retrain_schedule(
                name, training, settings.schedule, search_inputs, seeds=settings.seeds
            ),
            verification_schedule(name, verification, settings.schedule),
        ],
        sensors=[
            promotion_sensor(
                name,
                promotion_jobs,
                has_rollout=has_rollout,
                gate_settings_digest=gate_settings_digest,
                approval_settings=approval_settings,
            ),
            *sensors,
            failure_sensor(name, jobs),
        ],
    )
