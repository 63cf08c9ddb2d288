"""Schedules: retraining when data, code or settings changed, and verification of the registry."""

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from sluice.assets.best_config import BestConfig
from sluice.assets.features import FeatureSet
from sluice.assets.receipt_subjects import feature_producer, search_subject
from sluice.assets.record_io_manager import read_latest_record
from sluice.assets.resources import SluiceState
from sluice.config.pipeline import PipelineSettings
from sluice.pipelines.active_run import describe_active_run
from sluice.pipelines.jobs import training_name
from sluice.pipelines.source_poll import SourcePoll, SourceUnavailable
from sluice.registry.records import Version
from sluice.training.code import identify_code
from sluice.training.code_identity import describe_changes
from sluice.training.members import TrainedModels


def retrain_schedule(
    pipeline: PipelineSettings, job: UnresolvedAssetJobDefinition
) -> dg.ScheduleDefinition:
    """Return the schedule that starts the training job when its result could differ."""
    source = SourcePoll(pipeline)

    @dg.schedule(
        name=f"{pipeline.name}_retrain_schedule",
        job=job,
        cron_schedule=pipeline.schedule.cron,
        execution_timezone=pipeline.schedule.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Retrains when the source's rows, the code or the settings have changed since "
        "the newest candidate; else skips with the reason.",
    )
    def schedule(
        context: dg.ScheduleEvaluationContext, sluice_state: dg.ResourceParam[SluiceState]
    ) -> dg.RunRequest | dg.SkipReason:
        busy = describe_active_run(context.instance, training_name(pipeline))
        if busy:
            return dg.SkipReason(f"{busy} Later changes are handled by the next tick.")
        return request_retraining(pipeline, sluice_state, source)

    return schedule


def verification_schedule(
    pipeline: PipelineSettings, job: UnresolvedAssetJobDefinition
) -> dg.ScheduleDefinition:
    """Return the schedule that verifies the registry."""
    return dg.ScheduleDefinition(
        name=f"{pipeline.name}_registry_verification_schedule",
        job=job,
        cron_schedule=pipeline.schedule.verify_cron,
        execution_timezone=pipeline.schedule.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Verifies the registry and its artifacts; a finding fails the run.",
    )


def request_retraining(
    pipeline: PipelineSettings, state: SluiceState, source: SourcePoll
) -> dg.RunRequest | dg.SkipReason:
    """Return a run request tagged with the changes, or the reason to skip."""
    trained = read_latest_record(TrainedModels, state.home.records, pipeline.name, "trained_models")
    with state.ledger() as ledger:
        version = ledger.version_of(pipeline.name, trained.candidate) if trained else None
    answer = source.ask()
    if isinstance(answer, SourceUnavailable):
        if answer.is_slow:  # trains when it is unknown whether the rows are the same
            return dg.RunRequest(tags={"sluice/changed": f"unknown: {answer.reason}"})
        return dg.SkipReason(answer.reason)
    if trained is None or version is None:
        return dg.RunRequest(tags={"sluice/changed": "no candidate exists yet"})
    changed = find_changes(pipeline, trained, answer.digest, state)
    if changed:
        return dg.RunRequest(
            tags={"sluice/changed": ", ".join(changed), "sluice/since_version": str(version.number)}
        )
    return dg.SkipReason(_same(version, answer.digest))


def find_changes(
    pipeline: PipelineSettings, trained: TrainedModels, raw: str, state: SluiceState
) -> tuple[str, ...]:
    """Return the inputs that differ from those of the newest candidate; empty when all are equal.

    Args:
        pipeline: Present settings and code.
        trained: Models of the newest candidate.
        raw: Digest of the present rows of the source.
        state: State with the records of the stages.
    """
    code = identify_code(pipeline.loaded_workload, pipeline.model)
    features = read_latest_record(FeatureSet, state.home.records, pipeline.name, "features")
    best = read_latest_record(BestConfig, state.home.records, pipeline.name, "best_config")
    changed: dict[str, None] = {}
    if features is None or features.table.digest != trained.data or features.raw != raw:
        changed["data"] = None
    is_same_code = code.digest == trained.code
    if features is None or (is_same_code and features.maker != feature_producer(pipeline)):
        changed["workload"] = None
    if best is None or best.found != trained.config:
        changed["config"] = None
    else:
        now = search_subject(pipeline, best.subject["data"])
        words = {"rules": "search"}
        for role, digest in now.items():
            if role != "code" and best.subject.get(role) != digest:
                changed[words.get(role, role)] = None
    if not is_same_code:
        changed[describe_changes(code, trained.code_identity)] = None
    if trained.seeds != pipeline.seeds:
        changed["seeds"] = None
    return tuple(changed)


def _same(version: Version, raw: str) -> str:
    return (
        f"Nothing changed since version {version.number} of {version.registered_at:%Y-%m-%d %H:%M} "
        f"UTC: the source holds the same rows ({raw[:12]}), and code, settings and seeds are the "
        "same. A training would produce the same models."
    )
